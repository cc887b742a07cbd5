"""Fine-tunes a small Llama by LoRA with Trainer, merges it, and loads the adapter again."""

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=32,
)
base = LlamaForCausalLM(config)
base.save_pretrained("base")
lora = LoraConfig(
    r=4, lora_alpha=8, lora_dropout=0.1, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"
)
model = get_peft_model(base, lora)
model.print_trainable_parameters()
ids = torch.randint(64, (32, 12))
data = [{"input_ids": each, "labels": each} for each in ids]
arguments = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=8,
    max_steps=5,
    learning_rate=1e-2,
    logging_steps=1,
    save_strategy="no",
    report_to="none",
    disable_tqdm=True,
    use_cpu=True,
)
trainer = Trainer(model=model, args=arguments, train_dataset=data)
print("world size", trainer.args.world_size, trainer.args.parallel_mode)
trainer.train()
for entry in trainer.state.log_history:
    print({key: value for key, value in entry.items() if key in ("loss", "grad_norm", "train_loss")})
model.save_pretrained("adapter")
again = PeftModel.from_pretrained(LlamaForCausalLM.from_pretrained("base"), "adapter").merge_and_unload()
with torch.no_grad():
    print(again(ids[:4]).logits.square().mean().item())
