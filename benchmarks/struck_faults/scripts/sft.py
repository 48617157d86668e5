"""Fine-tune a small model with TRL's SFTTrainer, on the CPU."""

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import SFTConfig, SFTTrainer

TEXT = "the answer to the question is the sum of the numbers"


def tokenizer() -> PreTrainedTokenizerFast:
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<eos>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    inner.train_from_iterator([TEXT], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>", pad_token="<eos>")  # type: ignore[no-untyped-call]


def main() -> None:
    config = Qwen2Config(
        vocab_size=300,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    data = Dataset.from_list([{"text": TEXT}] * 16)
    arguments = SFTConfig("out", use_cpu=True, bf16=False, max_steps=2, report_to="none", max_length=32)
    trainer = SFTTrainer(
        model=Qwen2ForCausalLM(config), args=arguments, train_dataset=data, processing_class=tokenizer()
    )
    trainer.train()


if __name__ == "__main__":
    main()
