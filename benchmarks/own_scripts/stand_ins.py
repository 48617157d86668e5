"""Models and data of the commands in scripts.toml, made on the spot: `python stand_ins.py DIR`.

A model in DIR/models has the configuration of a published model, a small tokenizer and no weights, since the dry run
reads none; DIR/models/tiny has the same architectures with two layers and random weights, which run on a CPU.
Data in DIR/data are sentences of random words in the columns that the scripts read.
"""

from __future__ import annotations

import json
import pickle
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

WORDS = 600
ROWS = {"train": 512, "test": 64}
ROLES = "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
CHAT_TEMPLATE = ROLES + "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>", "[CLS]", "[SEP]", "[MASK]", "<|im_start|>", "<|im_end|>"]

# name: (model type, head, differences from the type's defaults, those of the tiny model, kind of tokenizer)
QWEN_TINY = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
LLAMA_TINY = {**QWEN_TINY, "vocab_size": 2048}
BERT_TINY = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_hidden_layers": 2}
QWEN2 = {"vocab_size": 151936, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "max_position_embeddings": 32768}
QWEN_7B = {**QWEN2, "vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28}
QWEN_1_5B = {**QWEN2, "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28}
QWEN_0_5B = {**QWEN2, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24}
QWEN3_8B = {"vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36}
T5_XL = {"d_model": 2048, "d_kv": 64, "d_ff": 5120, "num_layers": 24, "num_decoder_layers": 24, "num_heads": 32}
T5 = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "decoder_start_token_id": 0}
T5_TINY = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4}
BERT_LARGE = {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, "num_hidden_layers": 24}
OPT = {"hidden_size": 2048, "ffn_dim": 8192, "num_hidden_layers": 24, "num_attention_heads": 32}
OPT_TINY = {"hidden_size": 64, "ffn_dim": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
MODELS: dict[str, tuple[str, str, dict[str, Any], dict[str, Any], str]] = {
    "Qwen2.5-7B": (
        "qwen2",
        "CausalLM",
        {**QWEN_7B, "num_attention_heads": 28, "num_key_value_heads": 4, "dtype": "bfloat16"},
        {**QWEN_TINY, "num_hidden_layers": 2, "layer_types": None},
        "decoder",
    ),
    "Qwen2.5-1.5B": (
        "qwen2",
        "CausalLM",
        {
            **QWEN_1_5B,
            "num_attention_heads": 12,
            "num_key_value_heads": 2,
            "tie_word_embeddings": True,
            "dtype": "bfloat16",
        },
        {**QWEN_TINY, "num_hidden_layers": 2, "layer_types": None},
        "decoder",
    ),
    "Qwen2.5-0.5B": (
        "qwen2",
        "CausalLM",
        {
            **QWEN_0_5B,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "tie_word_embeddings": True,
            "dtype": "bfloat16",
        },
        {**QWEN_TINY, "num_hidden_layers": 2, "layer_types": None},
        "decoder",
    ),
    "Qwen3-8B": (
        "qwen3",
        "CausalLM",
        {**QWEN3_8B, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "dtype": "bfloat16"},
        {**QWEN_TINY, "head_dim": 16, "num_hidden_layers": 2, "layer_types": None},
        "decoder",
    ),
    "Llama-2-7b": ("llama", "CausalLM", {"dtype": "float16"}, {**LLAMA_TINY, "num_hidden_layers": 2}, "decoder"),
    "vicuna-7b": ("llama", "CausalLM", {"dtype": "float16"}, {**LLAMA_TINY, "num_hidden_layers": 2}, "llama"),
    "opt-1.3b": ("opt", "CausalLM", {**OPT, "dtype": "float16"}, {**OPT_TINY, "word_embed_proj_dim": 64}, "decoder"),
    "gpt2-xl": (
        "gpt2",
        "CausalLM",
        {"n_embd": 1600, "n_layer": 48, "n_head": 25},
        {"n_embd": 64, "n_layer": 2, "n_head": 4},
        "decoder",
    ),
    "bert-base-cased": ("bert", "MaskedLM", {"vocab_size": 28996}, BERT_TINY, "encoder"),
    "roberta-base": (
        "roberta",
        "MaskedLM",
        {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1},
        BERT_TINY,
        "encoder",
    ),
    "bert-large-cased": ("bert", "MaskedLM", {"vocab_size": 28996, **BERT_LARGE}, BERT_TINY, "encoder"),
    "flan-t5-xl": ("t5", "ForConditionalGeneration", {**T5_XL, **T5}, {**T5, **T5_TINY}, "seq2seq"),
    "vit-large-patch16-224": (
        "vit",
        "ForImageClassification",
        BERT_LARGE,
        {**BERT_TINY, "image_size": 224, "patch_size": 32},
        "image",
    ),
}


def sentence(numbers: random.Random, words: list[str], least: int, most: int) -> str:
    """Words at random, the frequent ones first as in a language; between `least` and `most` of them."""
    count = numbers.randint(least, most)
    return (
        " ".join(words[min(int(numbers.expovariate(1 / 80)), len(words) - 1)] for _ in range(count)).capitalize() + "."
    )


def vocabulary() -> list[str]:
    """WORDS made-up words of two to four syllables."""
    numbers = random.Random(0)
    syllables = [first + second for first in "bdfglmnprst" for second in ("a", "e", "i", "o", "u", "an", "er")]
    return ["".join(numbers.choices(syllables, k=numbers.randint(2, 4))) for _ in range(WORDS)]


def tokenizer(kind: str, vocab_size: int) -> Any:
    """A byte-level BPE tokenizer of the made-up words, about one token a word, with the special tokens of `kind`.

    vocab_size: tokens that no text has fill up the vocabulary. Some scripts give the model the tokenizer's size.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=2000, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator([" " + word for word in vocabulary()] * 2, trainer)
    filled = json.loads(backend.to_str())
    known = filled["model"]["vocab"]
    known |= {f"<unused {number}>": number for number in range(len(known), vocab_size)}
    backend = Tokenizer.from_str(json.dumps(filled))
    ids = {name: backend.token_to_id(name) for name in SPECIAL}
    names = {"pad_token": "<pad>", "unk_token": "<unk>"}
    if kind == "encoder":
        pair = "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1"
        pieces = [("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])]
        backend.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", pair, pieces)
        names |= {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
        names |= {"bos_token": "[CLS]", "eos_token": "[SEP]"}
    elif kind == "seq2seq":
        backend.post_processor = processors.TemplateProcessing("$A </s>", "$A $B </s>", [("</s>", ids["</s>"])])
        names |= {"eos_token": "</s>"}
    else:
        names |= {"bos_token": "<s>", "eos_token": "<|im_end|>"}
    most = 512 if kind == "encoder" else 4096
    tokenizer_class: Any = PreTrainedTokenizerFast
    made = tokenizer_class(tokenizer_object=backend, model_max_length=most, padding_side="right", **names)
    if kind in ("decoder", "llama"):
        made.chat_template = CHAT_TEMPLATE
    return made


def make_model(folder: Path, name: str, *, tiny: bool) -> None:
    """Configuration and tokenizer (or image processor) of one model of MODELS in `folder`; the tiny one has weights."""
    import transformers

    kind, head, sizes, small, reads = MODELS[name]
    if tiny:
        small = {"vocab_size": 2048, "dtype": "float32", **small} if reads != "image" else small
        sizes = {**sizes, **small}
        sizes = {key: value for key, value in sizes.items() if value is not None}
    if reads in ("decoder", "encoder", "llama"):
        sizes = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": SPECIAL.index("<|im_end|>"), **sizes}
    config = transformers.AutoConfig.for_model(kind, **sizes)
    mapping = (
        getattr(transformers, "AutoModelFor" + head.removeprefix("For"), None) or transformers.AutoModelForSeq2SeqLM
    )
    model_class: Any = mapping._model_mapping[type(config)]
    config.architectures = [model_class.__name__]
    folder.mkdir(parents=True, exist_ok=True)
    if tiny:
        mapping.from_config(config).save_pretrained(folder)
    else:
        config.save_pretrained(folder)
    if reads == "image":
        transformers.ViTImageProcessor().save_pretrained(folder)
    else:
        tokenizer(reads, config.get_text_config().vocab_size).save_pretrained(folder)
        path = folder / "tokenizer_config.json"  # transformers 4 has no class named TokenizersBackend
        known = "LlamaTokenizerFast" if reads == "llama" else "PreTrainedTokenizerFast"
        text = path.read_text(encoding="utf-8").replace("TokenizersBackend", known)
        path.write_text(text, encoding="utf-8")


def chat(user: str, assistant: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]


def rows(columns: Callable[[random.Random, list[str]], dict[str, Any]], split: str) -> Iterator[dict[str, Any]]:
    numbers, words = random.Random(split), vocabulary()
    return (columns(numbers, words) for _ in range(ROWS[split]))


def messages(numbers: random.Random, words: list[str]) -> dict[str, Any]:
    return {"messages": chat(sentence(numbers, words, 8, 60), sentence(numbers, words, 20, 600))}


def preferences(numbers: random.Random, words: list[str]) -> dict[str, Any]:
    user = sentence(numbers, words, 8, 60)
    return {word: chat(user, sentence(numbers, words, 20, 300)) for word in ("chosen", "rejected")}


def prompts(numbers: random.Random, words: list[str]) -> dict[str, Any]:
    question = [{"role": "user", "content": sentence(numbers, words, 20, 120)}]
    return {"prompt": question, "solution": f"${numbers.randint(0, 99)}$"}


def unpaired(numbers: random.Random, words: list[str]) -> dict[str, Any]:
    asked, answered = chat(sentence(numbers, words, 8, 60), sentence(numbers, words, 20, 300))
    return {"prompt": [asked], "completion": [answered], "label": numbers.random() < 0.5}


def instructions(numbers: random.Random, words: list[str]) -> dict[str, Any]:
    made = {"instruction": sentence(numbers, words, 8, 40), "input": "", "output": sentence(numbers, words, 20, 300)}
    asked = "Below is an instruction that describes a task.\n\n### Instruction:\n" + made["instruction"]
    return made | {"text": asked + "\n\n### Response:\n" + made["output"]}


def instruction_pairs(numbers: random.Random, words: list[str]) -> dict[str, Any]:
    asked = {"instruction": sentence(numbers, words, 8, 40), "input": ""}
    return asked | {word: sentence(numbers, words, 20, 300) for word in ("chosen", "rejected")}


def plain_pairs(numbers: random.Random, words: list[str]) -> dict[str, Any]:
    texts = {word: " " + sentence(numbers, words, 20, 200) for word in ("chosen", "rejected")}
    return {"prompt": f"Human: {sentence(numbers, words, 8, 60)} Assistant:"} | texts


def articles(numbers: random.Random, words: list[str]) -> dict[str, Any]:
    return {"document": sentence(numbers, words, 300, 1200), "summary": sentence(numbers, words, 20, 100)}


def sentence_pairs(numbers: random.Random, words: list[str]) -> dict[str, Any]:
    texts = {name: sentence(numbers, words, 10, 40) for name in ("sentence1", "sentence2")}
    return texts | {"label": numbers.randint(0, 1), "idx": numbers.randint(0, 10**6)}


def triplets(numbers: random.Random, words: list[str]) -> dict[str, Any]:
    return {name: sentence(numbers, words, 10, 40) for name in ("anchor", "positive", "negative")}


def scored_pairs(numbers: random.Random, words: list[str]) -> dict[str, Any]:
    texts = {name: sentence(numbers, words, 10, 40) for name in ("sentence1", "sentence2")}
    return texts | {"score": numbers.random()}


def questions(numbers: random.Random, words: list[str]) -> dict[str, Any]:
    context = sentence(numbers, words, 80, 300)
    answer = context.split()[numbers.randint(3, 60)]
    found = {"text": [answer], "answer_start": [context.index(answer)]}
    identifier = str(numbers.randint(0, 10**9))
    return {"id": identifier, "question": sentence(numbers, words, 5, 15), "context": context, "answers": found}


TABLES = {
    "sft": messages,
    "preferences": preferences,
    "prompts": prompts,
    "unpaired": unpaired,
    "alpaca": instructions,
    "alpaca_pairs": instruction_pairs,
    "plain_pairs": plain_pairs,
    "articles": articles,
    "sentence_pairs": sentence_pairs,
    "triplets": triplets,
    "questions": questions,
}


def write_tables(data: Path) -> None:
    """TABLES as folders with train.json and test.json, one object a line, and what is of another form."""
    for name, columns in TABLES.items():
        (data / name).mkdir(parents=True, exist_ok=True)
        for split in ROWS:
            lines = [json.dumps(row) for row in rows(columns, split)]
            (data / name / f"{split}.json").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for split in ROWS:
        asked = {"data": list(rows(questions, split))}
        (data / "questions" / f"squad_{split}.json").write_text(json.dumps(asked), encoding="utf-8")
        listed = list(rows(instructions, split))
        (data / "alpaca" / f"list_{split}.json").write_text(json.dumps(listed), encoding="utf-8")
    chosen = [
        {"messages": row["chosen"], "rejected_response": row["rejected"][1]["content"]}
        for row in rows(preferences, "train")
    ]
    (data / "swift_dpo.jsonl").write_text("".join(json.dumps(row) + "\n" for row in chosen), encoding="utf-8")
    numbers, words = random.Random(0), vocabulary()
    lines = [sentence(numbers, words, 20, 200) for _ in range(4000)]
    (data / "text.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_hub_data(data: Path) -> None:
    """Folders that stand for data sets of the hub: nyu-mll/glue and wikitext, with the subset that a script names."""
    glue = data / "hub" / "nyu-mll" / "glue"
    splits = {"train": "train", "validation": "test", "test": "test"}
    for split, source in splits.items():
        (glue / "mrpc").mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(row) for row in rows(sentence_pairs, source)]
        (glue / "mrpc" / f"{split}.json").write_text("\n".join(lines) + "\n", encoding="utf-8")
    classes = "class_label: {names: {'0': not_equivalent, '1': equivalent}}"
    columns = ["sentence1, dtype: string", "sentence2, dtype: string", "idx, dtype: int64"]
    features = "".join(f"  - {{name: {column}}}\n" for column in columns)
    features += f"  - {{name: label, dtype: {{{classes}}}}}\n"
    files = "".join(f"  - {{split: {split}, path: mrpc/{split}.json}}\n" for split in splits)
    info = f"dataset_info:\n- config_name: mrpc\n  features:\n{features}"
    (glue / "README.md").write_text(
        f"---\nconfigs:\n- config_name: mrpc\n  data_files:\n{files}{info}---\n", encoding="utf-8"
    )
    nli = data / "hub" / "sentence-transformers"
    for name, config, row, parts in (
        ("all-nli", "triplet", triplets, ("train", "dev")),
        ("stsb", "default", scored_pairs, ("validation", "test")),
    ):
        (nli / name).mkdir(parents=True, exist_ok=True)
        numbers, words = random.Random(0), vocabulary()
        for split in parts:
            lines = [json.dumps(row(numbers, words)) for _ in range(10000 if split == "train" else 1000)]
            (nli / name / f"{split}.json").write_text("\n".join(lines) + "\n", encoding="utf-8")
        files = "".join(f"  - {{split: {split}, path: {split}.json}}\n" for split in parts)
        text = f"---\nconfigs:\n- config_name: {config}\n  data_files:\n{files}---\n"
        (nli / name / "README.md").write_text(text, encoding="utf-8")
    wikitext = data / "hub" / "wikitext"
    wikitext.mkdir(parents=True, exist_ok=True)
    text = (data / "text.txt").read_text(encoding="utf-8")
    (data / "nltk" / "tokenizers" / "punkt").mkdir(parents=True, exist_ok=True)
    punkt = data / "nltk" / "tokenizers" / "punkt_tab" / "english"  # nltk's splitter of sentences, nothing learned
    punkt.mkdir(parents=True, exist_ok=True)
    for name in ("collocations.tab", "sent_starters.txt", "abbrev_types.txt", "ortho_context.tab"):
        (punkt / name).write_text("", encoding="utf-8")
    (wikitext / "train.txt").write_text(text, encoding="utf-8")
    names = ("wikitext-2-v1", "wikitext-2-raw-v1", "wikitext-103-raw-v1")
    configs = "".join(f"- {{config_name: {name}, data_files: train.txt}}\n" for name in names)
    (wikitext / "README.md").write_text(f"---\nconfigs:\n{configs}---\n", encoding="utf-8")


def write_tokens(data: Path) -> None:
    """nanoGPT's token files."""
    import numpy

    numbers, folder = numpy.random.default_rng(0), data / "openwebtext"
    folder.mkdir(exist_ok=True)
    for split, count in {"train": 200_000, "val": 20_000}.items():
        numbers.integers(0, 50257, count, dtype=numpy.uint16).tofile(folder / f"{split}.bin")


def write_datasets(data: Path) -> None:
    """The text as `datasets` saves it, and the files of torchvision's MNIST."""
    import datasets
    import numpy

    text = datasets.load_dataset("text", data_files={"train": str(data / "text.txt")})
    text.save_to_disk(str(data / "text_on_disk"))
    folder = data / "mnist" / "MNIST" / "raw"
    folder.mkdir(parents=True, exist_ok=True)
    numbers = numpy.random.default_rng(0)
    for split, count in {"train": 60000, "t10k": 10000}.items():
        pixels = numbers.integers(0, 255, (count, 28, 28), dtype=numpy.uint8)
        labels = numbers.integers(0, 10, count, dtype=numpy.uint8)
        sizes = numpy.array([0x803, count, 28, 28], dtype=">i4").tobytes()
        (folder / f"{split}-images-idx3-ubyte").write_bytes(sizes + pixels.tobytes())
        sizes = numpy.array([0x801, count], dtype=">i4").tobytes()
        (folder / f"{split}-labels-idx1-ubyte").write_bytes(sizes + labels.tobytes())


def write_images(data: Path) -> None:
    """Folders of pictures by class, pictures named CLASS_NUMBER.jpg in one folder, and the files of CIFAR-10."""
    import numpy
    from PIL import Image

    numbers = numpy.random.default_rng(0)
    for split, count in {"train": 24, "test": 6}.items():
        for label in range(4):
            folder = data / "images" / split / f"class{label}"
            folder.mkdir(parents=True, exist_ok=True)
            for index in range(count):
                pixels = numbers.integers(0, 255, (256, 256, 3), dtype=numpy.uint8)
                Image.fromarray(pixels).save(folder / f"{index}.jpg")
                (data / "pets").mkdir(exist_ok=True)
                Image.fromarray(pixels).save(data / "pets" / f"class{label}_{split}_{index}.jpg")
    cifar = data / "cifar" / "cifar-10-batches-py"
    cifar.mkdir(parents=True, exist_ok=True)
    for name in [f"data_batch_{index}" for index in range(1, 6)] + ["test_batch"]:
        pixels = numbers.integers(0, 255, (1000, 3072), dtype=numpy.uint8)
        batch = {"data": pixels, "labels": numbers.integers(0, 10, 1000).tolist()}
        (cifar / name).write_bytes(pickle.dumps(batch))
    (cifar / "batches.meta").write_bytes(pickle.dumps({"label_names": [f"class{index}" for index in range(10)]}))


def write_deepspeed_configs(data: Path) -> None:
    """zero1.json to zero3.json with transformers' "auto" values, and zero2_fixed.json for scripts without them."""
    keys = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_clipping")
    automatic: dict[str, Any] = dict.fromkeys(keys, "auto")
    automatic |= {"gradient_accumulation_steps": "auto", "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}}
    for stage in (1, 2, 3):
        zero: dict[str, Any] = {"stage": stage, "overlap_comm": True, "contiguous_gradients": True}
        if stage == 3:
            zero |= {"stage3_gather_16bit_weights_on_model_save": True, "stage3_param_persistence_threshold": "auto"}
            zero |= {"reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto"}
        made = automatic | {"zero_optimization": zero}
        (data / f"zero{stage}.json").write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")
    adam = {"type": "AdamW", "params": {"lr": 1e-5, "betas": [0.9, 0.95], "weight_decay": 0.1}}
    fixed = {"train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 1, "optimizer": adam}
    fixed |= {"bf16": {"enabled": True}, "gradient_clipping": 1.0, "zero_optimization": {"stage": 2}}
    (data / "zero2_fixed.json").write_text(json.dumps(fixed, indent=2) + "\n", encoding="utf-8")


def main(folder: Path) -> None:
    data = folder / "data"
    write_tables(data)
    write_hub_data(data)
    write_images(data)
    write_tokens(data)
    write_datasets(data)
    write_deepspeed_configs(data)
    for name in MODELS:
        make_model(folder / "models" / name, name, tiny=False)
        make_model(folder / "models" / "tiny" / name, name, tiny=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
