"""What an objective changes: pairs, the reference model, the head of a reward model."""

from dataclasses import fields, replace
from typing import Any

import pytest
from ds_advise.advisor.advise import build_question
from ds_advise.advisor.question.model_source import model_shape
from ds_advise.advisor.question.workload import build_workload
from ds_advise.ds_configs.training_script import script_lines, training_arguments
from ds_advise.estimators.errors import WorkloadError
from ds_advise.estimators.estimate import total_bytes
from ds_advise.estimators.memory.activations.loss import loss_terms
from ds_advise.estimators.memory.plan_memory import estimate_memory
from ds_advise.estimators.models.catalogue import config, find
from ds_advise.estimators.models.families import shape_from_config
from ds_advise.estimators.objectives import OBJECTIVES, trained_config, trained_model
from ds_advise.estimators.plan import Plan
from ds_advise.estimators.rollouts import Rollouts
from ds_advise.estimators.time.step_time import estimate_forward_s, estimate_time
from ds_advise.estimators.unsupported import unsupported
from ds_advise.estimators.workload import Software, Workload

from tests.estimators.small_models import BERT, GPT, T5, TEXT, small
from tests.helpers import h100s

MODEL, CLUSTER = find("Qwen2.5-1.5B"), h100s(8)
SFT = Workload(framework="trl", loss="chunked-head")
DPO = replace(SFT, objective="dpo")
GRPO = Workload(objective="grpo", framework="trl", rollouts=Rollouts())
PLANS = {
    "zero2": Plan(zero_stage=2, micro_batch_size=2),
    "zero3": Plan(zero_stage=3, micro_batch_size=2),
    "offload": Plan(zero_stage=3, micro_batch_size=2, offload_param="cpu"),
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_a_pair_is_computed_as_two_sequences(plan: Plan) -> None:
    """Without a reference model a pair needs, and takes, what two samples do."""
    pairs, sequences = replace(SFT, objective="simpo"), replace(plan, micro_batch_size=4)
    ours, theirs = (
        estimate_memory(MODEL, workload, CLUSTER, each) for workload, each in ((pairs, plan), (SFT, sequences))
    )
    assert ours.components == theirs.components
    step, other = estimate_time(MODEL, pairs, CLUSTER, plan), estimate_time(MODEL, SFT, CLUSTER, sequences)
    assert (step.step_s, step.tokens_per_step) == (other.step_s, other.tokens_per_step) == (step.step_s, 8 * 4 * 2048)


@pytest.mark.parametrize(
    ("plan", "share", "changes"),
    [
        ("zero2", 1.0, {}),
        ("zero3", 1 / 8, {}),
        ("offload", 0.0, {}),
        ("zero2", 0.0, {"method": "lora"}),
        ("zero2", 0.0, {"precompute_ref_log_probs": True}),
    ],
)
def test_the_reference_model_is_whole_below_stage_3_and_absent_with_adapters(
    plan: str, share: float, changes: dict[str, Any]
) -> None:
    memory = estimate_memory(MODEL, replace(DPO, **changes), CLUSTER, PLANS[plan])
    held = memory.components.get("reference_model", 0)
    assert held == pytest.approx(2 * MODEL.parameters * share, rel=0.001, abs=2 * 10**6)  # small tensors stay whole
    on_host = sum(part.size_bytes for part in memory.host_pinned_terms if part.name == "reference_model")
    assert (on_host > 2 * MODEL.parameters * 0.99) == (plan == "offload")
    if plan == "zero2" and not changes:  # both models are on the host until DeepSpeed has them
        alone = estimate_memory(MODEL, SFT, CLUSTER, PLANS[plan])
        more = memory.host_loading_bytes_per_node - alone.host_loading_bytes_per_node
        assert more == 8 * 2 * MODEL.parameters


def test_a_reference_pass_with_adapters_keeps_every_gathered_weight_at_stage_3() -> None:
    """As two ranks of TRL's DPOTrainer do; without the pass, and before DeepSpeed attributed recomputed weights to a
    layer, few are held."""
    lora = replace(DPO, method="lora")
    older = Software(deepspeed=(0, 18))

    def gathered(workload: Workload) -> int:
        phases = estimate_memory(MODEL, workload, CLUSTER, replace(PLANS["zero3"], stage3_max_live_parameters=0)).phases
        return max(part.size_bytes for each in phases for part in each.terms if part.name == "gathered_parameters")

    whole = 2 * MODEL.parameters
    assert gathered(lora) > 0.99 * whole
    for other in (replace(lora, software=older), replace(lora, precompute_ref_log_probs=True)):
        assert gathered(other) < 0.5 * whole


def test_adapters_at_stage_3_gather_the_embedding_while_the_chunked_head_stays_whole() -> None:
    """As dry runs do: beyond the limit of live parameters."""
    model, plan = find("Qwen2.5-7B"), replace(PLANS["zero3"], gradient_checkpointing=True)
    phases = estimate_memory(model, replace(SFT, method="lora"), CLUSTER, plan).phases
    (backward,) = (each for each in phases if each.name == "layer_backward")
    whole = sum(part.size_bytes for part in backward.terms if part.name == "gathered_parameters")
    assert whole > 2 * (2 * model.vocab_size * model.hidden_size + plan.stage3_max_live_parameters // 5)


@pytest.mark.parametrize(
    ("objective", "passes"),
    [("dpo", {"reference model": 1}), ("kto", {"reference model": 2, "passes without gradients": 1})],
)
def test_passes_without_gradients_take_the_time_of_forward_passes(objective: Any, passes: dict[str, int]) -> None:
    workload, plan = replace(DPO, objective=objective), PLANS["zero3"]
    found = estimate_time(MODEL, workload, CLUSTER, plan).components
    forward_s = estimate_forward_s(MODEL, workload, CLUSTER, plan)
    assert {name: found.get(name, 0) / forward_s for name in passes} == pytest.approx(passes)


def test_a_reward_model_has_one_number_per_token_and_no_logits() -> None:
    """The same tensors as transformers' own class."""
    reward = trained_model(MODEL, "reward")
    theirs = shape_from_config(trained_config(config(MODEL.name), MODEL, "reward"), name=MODEL.name)
    assert (reward.outside, reward.architecture, reward.num_labels) == (theirs.outside, theirs.architecture, 1)
    memory = estimate_memory(reward, replace(SFT, objective="reward", loss="standard"), CLUSTER, PLANS["zero2"])
    assert not any("logit" in part.name or "softmax" in part.name for phase in memory.phases for part in phase.terms)
    with pytest.raises(WorkloadError, match="a reward model of"):
        trained_model(find("bert-base-uncased"), "reward")


BERT_LIKE = BERT | {"max_position_embeddings": 512, "type_vocab_size": 1}
DEBERTA = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False}
TEXTS = {
    "llama": small("llama", TEXT),
    "qwen3": small("qwen3", TEXT, tie_word_embeddings=True, head_dim=32),
    "gpt2": small("gpt2", GPT),
    "bert": small("bert", BERT_LIKE, architectures=["BertModel"]),
    "roberta": small("roberta", BERT_LIKE, architectures=["RobertaForMaskedLM"]),
    "xlm-roberta": small("xlm-roberta", BERT_LIKE, architectures=["XLMRobertaForMaskedLM"]),
    "deberta-v2": small("deberta-v2", BERT_LIKE | DEBERTA, architectures=["DebertaV2ForMaskedLM"]),
    "modernbert": small("modernbert", TEXT, architectures=["ModernBertForMaskedLM"], pad_token_id=0),
    "t5": small("t5", T5, d_kv=16),
}


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("objective", ["classification", "embedding"])
def test_models_without_a_vocabulary_have_the_parameters_of_transformers_classes(name: str, objective: Any) -> None:
    """Those that its automatic classes build, without logits at any moment; of encoders the same plan takes the bytes
    of the class recorded itself."""
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    config = TEXTS[name]
    model = model_shape(config, name=name)
    if name == "t5" and objective == "embedding":
        with pytest.raises(WorkloadError, match="has no embedding of a text"):
            trained_model(model, objective)
        return
    ours = trained_model(model, objective)
    kind = transformers.AutoModelForSequenceClassification if ours.num_labels else transformers.AutoModel
    with torch.device("meta"):
        built = kind.from_config(transformers.AutoConfig.for_model(**config))
    assert sum(parameter.numel() for parameter in built.parameters()) == ours.parameters
    assert type(built).__name__ == ours.architecture
    if name == "t5":  # its class is not recordable
        return
    theirs = model_shape(trained_config(config, model, objective), name=name)
    for plan in PLANS.values():
        workload = Workload(objective=objective, seq_len=128)
        one, other = (estimate_memory(shape, workload, CLUSTER, plan) for shape in (ours, theirs))
        assert one.allocated_bytes_per_gpu == pytest.approx(other.allocated_bytes_per_gpu, rel=0.001)
        assert not any("logit" in part.name or "softmax" in part.name for phase in one.phases for part in phase.terms)


def test_a_vocabulary_costs_nothing_where_labels_are_trained() -> None:
    """Pairs of texts are two sequences. The vocabulary is most of a small model's memory."""
    plan = replace(PLANS["zero2"], micro_batch_size=16)
    step, labels, pairs = (
        estimate_memory(trained_model(MODEL, objective), Workload(objective=objective), CLUSTER, plan)
        for objective in ("next-token", "classification", "embedding")
    )
    assert step.allocated_bytes_per_gpu > 3 * labels.allocated_bytes_per_gpu
    sequences = replace(plan, micro_batch_size=32)
    alone = estimate_memory(trained_model(MODEL, "embedding"), Workload(), CLUSTER, sequences)
    assert pairs.allocated_bytes_per_gpu == pytest.approx(alone.allocated_bytes_per_gpu, rel=1e-4)
    with pytest.raises(WorkloadError, match="--framework trl cannot be used"):
        build_workload({"objective": "embedding", "framework": "trl"}, MODEL, None)
    with pytest.raises(WorkloadError, match="only models of text"):
        trained_model(find("google/vit-base-patch16-224-in21k"), "embedding")


def test_plans_that_a_reference_model_or_pairs_exclude() -> None:
    swapped = Plan(zero_stage=3, micro_batch_size=1, offload_param="nvme", offload_optimizer="nvme")
    assert "reference model" in str(unsupported(MODEL, DPO, swapped))
    assert unsupported(MODEL, replace(DPO, precompute_ref_log_probs=True), swapped) is None
    shared = Plan(zero_stage=3, micro_batch_size=1, sequence_parallel_size=2)
    assert "whole sequences" in str(unsupported(MODEL, DPO, shared))


def test_the_objective_decides_on_framework_and_loss() -> None:
    def of(**options: Any) -> tuple[str, str]:
        workload = build_workload(options, MODEL, None)
        return workload.framework, workload.loss

    assert of(objective="dpo") == ("trl", "chunked-head")
    assert of(objective="dpo", software="trl=1.6") == ("trl", "log-probs")
    assert of(objective="orpo") == ("trl", "odds-ratio")
    assert of(objective="reward") == ("trl", "standard")
    for saved in ({}, {"modules_to_save": "score"}):
        workload = build_workload({"objective": "reward", "method": "lora", **saved}, MODEL, None)
        assert workload.modules_to_save == ("score",)
    with pytest.raises(WorkloadError, match="cannot be used with --objective kto"):
        of(objective="kto", loss="fused")


def test_the_gradients_of_logits_in_trl_before_its_chunked_head() -> None:
    """Measured in torch with its `selective_log_softmax`: four tensors of logits in fp32, and in 16 bits three, or four
    since GRPO divides them in place."""

    def held(trl: tuple[int, int], **habits: Any) -> float:
        workload = replace(GRPO, loss="log-probs", software=Software(trl=trl, **habits))
        logits = workload.scored_len * MODEL.vocab_size * (4 if habits else 2)
        return total_bytes(loss_terms(MODEL, workload, 1)) / logits

    assert held((1, 4), autocast=True) == held((0, 17), autocast=True) == 4
    assert (held((0, 17)), held((1, 4)), held((1, 16))) == (3, 4, 2)


@pytest.mark.parametrize("objective", ["dpo", "kto", "orpo", "simpo", "reward"])
def test_the_printed_script_is_that_of_the_trainer(objective: Any) -> None:
    """Its class has every argument."""
    workload = replace(DPO, objective=objective, precompute_ref_log_probs=objective == "dpo", method="lora")
    spec, plan = OBJECTIVES[objective], PLANS["zero3"]
    lines = script_lines(trained_model(MODEL, objective), workload, plan, CLUSTER, "ds_config.json")
    assert lines[:2] == [f"from {spec.module} import {spec.config}, {spec.trainer}", f"args = {spec.config}("]
    assert lines[-3:] == [
        f"trainer = {spec.trainer}(",
        "    model=..., args=args, train_dataset=..., processing_class=...,",
        "    peft_config=peft_config)",
    ]
    assert max(map(len, lines)) < 77  # an answer of 80 columns folds none
    trl = pytest.importorskip(spec.module)
    known = {field.name for field in fields(getattr(trl, spec.config))}
    assert training_arguments(plan, workload, CLUSTER).keys() <= known


def test_the_printed_adapters_have_the_scale_of_those_that_train_makes() -> None:
    """Twice the rank; peft's own default is 8 at any rank."""
    workload = Workload(method="lora", lora_rank=16)
    assert "LoraConfig(r=16, lora_alpha=32, " in "".join(
        script_lines(MODEL, workload, PLANS["zero2"], CLUSTER, "ds_config.json")
    )


def test_kto_has_two_samples_in_a_micro_batch() -> None:
    question = build_question(MODEL, gpus="8xH100", objective="kto")
    assert min(micro for micro, _ in question.batch_shapes()) == 2
    with pytest.raises(WorkloadError, match="a micro batch of 1 is too small for kto"):
        build_question(MODEL, gpus="8xH100", objective="kto", global_batch=8)


def test_a_value_head_beside_the_logits_takes_their_bytes_in_the_forward_pass_alone() -> None:
    """LLaMA-Factory's reward models: 2 + 4 bytes of each; the head is held, and trains without a gradient."""
    beside = replace(SFT, objective="reward", loss="value-head")
    model = trained_model(MODEL, "reward", "value-head")
    assert model.parameters == MODEL.parameters + MODEL.hidden_size + 1
    (logits,) = loss_terms(model, beside, micro_batch_size=2)
    assert logits.size_bytes == (2 + 4) * 2 * 2048 * MODEL.vocab_size
    alone = trained_model(MODEL, "reward")
    plan, standard = PLANS["zero3"], replace(beside, loss="standard")
    with_logits, without = (
        {phase.name: phase.allocated_bytes for phase in estimate_memory(*each, CLUSTER, plan).phases}
        for each in ((model, beside), (alone, standard))
    )
    more = {name: with_logits[name] - without[name] for name in ("loss_peak", "layer_backward")}
    assert more["loss_peak"] > 0.9 * 6 * 4 * 2048 * MODEL.vocab_size > 100 * abs(more["layer_backward"])
    slower = estimate_time(model, beside, CLUSTER, plan).step_s / estimate_time(alone, standard, CLUSTER, plan).step_s
    assert 1 < slower < 1.2


def test_ppo_makes_its_arguments_before_its_models() -> None:
    """With what it has imported; ZeRO-3 shards a model that is loaded afterwards."""
    model = find(MODEL) if isinstance(MODEL, str) else MODEL
    workload = Workload(objective="ppo", framework="trl", rollouts=OBJECTIVES["ppo"].rollouts)
    lines = script_lines(model, workload, Plan(zero_stage=3, micro_batch_size=1), CLUSTER, "ds_config.json")
    parts = ("from trl.experimental.ppo import PPOConfig", "args = PPOConfig(", "model, ref_model = (", "trainer = ")
    places = [next(place for place, line in enumerate(lines) if line.startswith(part)) for part in parts]
    assert places == sorted(places)
