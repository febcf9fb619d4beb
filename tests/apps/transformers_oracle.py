"""Models of Hugging Face, in and out: tiny ones with drawn weights, made by transformers. `shoal generate` reads their folders and must give the
log-probabilities of transformers and its greedy text; what `shoal ckpt import` and `export` make of them, transformers must load, the same bits,
tokens and chat template. Exported as GGUF, a model has the tensors that llama.cpp's converter makes of it, and gives the same text.
Argument: the program. Exit code 77: this Python has no transformers."""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from oracle import check, shoal

os.environ["HF_HUB_OFFLINE"] = "1"
try:
    import gguf
    import safetensors
    import torch
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
except ImportError as error:
    print(f"this Python cannot import torch, transformers and gguf ({error}): tools/setup_python.sh brings them")
    sys.exit(77)

PROMPT = "Größe: the fish don't sleep, 12345 times"
TOKENS = 10
# Both sum in f32, in another order; logits are about 10 in size, so that their last digit is 1e-6.
TOLERANCE = 1e-4
CHAT_TEMPLATE = "{% for message in messages %}<|user|>{{ message['content'] }}{% endfor %}"


def small_tokenizer():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=["<|end|>", "<|begin|>", "<|user|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator([Path(__file__).read_text(encoding="utf-8")], trainer)
    begin = tokenizer.token_to_id("<|begin|>")
    tokenizer.post_processor = processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", begin)])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", bos_token="<|begin|>", chat_template=CHAT_TEMPLATE)


def families(tokenizer):
    both = dict(vocab_size=len(tokenizer), bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=None)
    yield "gpt2", transformers.GPT2Config(**both, n_layer=2, n_embd=24, n_head=3, n_positions=64, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    rotary = dict(both, num_hidden_layers=2, hidden_size=24, num_attention_heads=4, num_key_value_heads=2, head_dim=6, intermediate_size=40, max_position_embeddings=64)
    yield "llama", transformers.LlamaConfig(**rotary, tie_word_embeddings=True)
    # Wave lengths of 6, 29 and 135 positions: below, between and above the two limits.
    scaling = {"rope_type": "llama3", "rope_theta": 100.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
    yield "llama3", transformers.LlamaConfig(**rotary, rope_parameters=scaling)
    yield "qwen2", transformers.Qwen2Config(**rotary, rope_parameters={"rope_type": "default", "rope_theta": 500.0})
    yield "qwen3", transformers.Qwen3Config(**rotary, tie_word_embeddings=True)
    yield "mixtral", transformers.MixtralConfig(**rotary, num_local_experts=4, num_experts_per_tok=2, sliding_window=None)
    yield "glm4_moe", transformers.Glm4MoeConfig(**dict(rotary, intermediate_size=56), n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=2, moe_intermediate_size=20,
                                                 first_k_dense_replace=1, routed_scaling_factor=2.5, use_qk_norm=True, n_group=1, topk_group=1, norm_topk_prob=True,
                                                 rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0})


def drawn(config):
    """Weights far from what initialization gives: norms and biases that matter."""
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if tensor.is_floating_point():
                around = 1.0 if name.endswith(("norm.weight", "layernorm.weight", "ln_1.weight", "ln_2.weight", "ln_f.weight")) else 0.0
                tensor.normal_(around, 0.3)
    return model


def greedy(model, tokens, count=TOKENS):
    """The `count` likeliest tokens behind `tokens`, and the log-probabilities of all in the place of each."""
    new, rows = [], []
    with torch.no_grad():
        for _ in range(count):
            rows.append(torch.log_softmax(model(torch.tensor([tokens + new])).logits[0, -1].double(), -1))
            new.append(int(rows[-1].argmax()))
    return new, torch.stack(rows)


def check_generated(name, source, tokens, new, rows):
    """What `shoal generate` makes of the model at `source`."""
    told = json.loads(shoal("generate", "--checkpoint", source, "--prompt", PROMPT, "--tokens", str(TOKENS), "--temperature", "0", "--probabilities", "1000", "--json"))
    check(told["prompt_tokens"] == tokens, f"{name}: tokens of the prompt {told['prompt_tokens']}, not {tokens}")
    ours = torch.empty_like(rows)
    for step, token in enumerate(told["tokens"]):
        check(len(token["most_probable"]) == rows.shape[1], f"{name}: {len(token['most_probable'])} probabilities")
        for entry in token["most_probable"]:
            ours[step, entry["token"]] = entry["log_probability"]
    apart = float((ours - rows).abs().max())
    check(apart < TOLERANCE, f"{name}: log-probabilities differ by {apart}")
    check([token["token"] for token in told["tokens"]] == new, f"{name}: another greedy text")
    return apart


def check_checkpoint(folder, model):
    """What Python's safetensors reads in the checkpoint that Shoal made of a Llama: each tensor under the name that docs/concepts/checkpoints.md shows."""
    read = {}
    for file in Path(folder, "step-0").glob("*.safetensors"):
        with safetensors.safe_open(file, "pt") as tensors:
            read.update((key, tensors.get_tensor(key)) for key in tensors.keys())
    theirs = model.state_dict()
    names = {"model.embed_tokens": "model.embedding.tokens", "model.norm": "model.head.norm"}
    expected = {f"{ours}.weight": theirs[f"{key}.weight"] for key, ours in names.items()}
    for layer in range(model.config.num_hidden_layers):
        there, here = f"model.layers.{layer}", f"model.blocks.{layer}"
        # Group by group: the queries that share a key, that key and its value, so that ranks divide the matrix by rows.
        groups = [theirs[f"{there}.self_attn.{part}_proj.weight"].chunk(model.config.num_key_value_heads) for part in "qkv"]
        expected[f"{here}.attention.qkv.weight"] = torch.cat([part for group in zip(*groups) for part in group])
        for key, ours in (("self_attn.o_proj", "attention.out"), ("mlp.gate_proj", "mlp.gate"), ("mlp.up_proj", "mlp.up"), ("mlp.down_proj", "mlp.down"),
                          ("input_layernorm", "norm_1"), ("post_attention_layernorm", "norm_2")):
            expected[f"{here}.{ours}.weight"] = theirs[f"{there}.{key}.weight"]
    check(read.keys() == expected.keys(), f"the checkpoint has other tensors: {read.keys() ^ expected.keys()}")
    for key in expected:
        check(torch.equal(read[key], expected[key]), f"{key} differs in the checkpoint")


def check_exported(name, folder, model, tokenizer, tokens):
    """What transformers makes of the folder that Shoal wrote."""
    back = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    check(type(back) is type(model), f"{name}: loads as {type(back)}")
    theirs, ours = model.state_dict(), back.state_dict()
    check(theirs.keys() == ours.keys(), f"{name}: other tensors: {theirs.keys() ^ ours.keys()}")
    for key in theirs:
        check(torch.equal(theirs[key], ours[key]), f"{name}: {key} differs")
    batch = torch.tensor([tokens])
    with torch.no_grad():
        check(torch.equal(model(batch).logits, back(batch).logits), f"{name}: the configuration differs")
    read = transformers.AutoTokenizer.from_pretrained(folder)
    check(read(PROMPT)["input_ids"] == tokens, f"{name}: the tokenizer differs")
    check(read.decode(tokens) == tokenizer.decode(tokens), f"{name}: the tokenizer decodes otherwise")
    check(read.eos_token == tokenizer.eos_token and read.chat_template == tokenizer.chat_template, f"{name}: the end of a text or the chat template is lost")
    check(back.generation_config.eos_token_id == tokenizer.eos_token_id, f"{name}: generation does not end at {tokenizer.eos_token}")


def expected_in_gguf(name, config, model):
    """The tensors as convert_hf_to_gguf.py of llama.cpp has them: names from the package gguf; linear layers of GPT-2 turned round, rows of queries
    and keys of Llama ordered for the rotation of neighbours."""
    names = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, "LLAMA" if name.startswith("llama") else name.upper()), config.num_hidden_layers)
    expected = {}
    for key, tensor in model.state_dict().items():
        base, kind = key.rsplit(".", 1)
        if base == "lm_head" and config.tie_word_embeddings:
            continue
        if name == "gpt2" and kind == "weight" and ".c_" in base:
            tensor = tensor.T
        if name.startswith("llama") and base.endswith(("q_proj", "k_proj")):
            heads = config.num_attention_heads if base.endswith("q_proj") else config.num_key_value_heads
            tensor = tensor.reshape(heads, 2, -1, tensor.shape[1]).swapaxes(1, 2).reshape(tensor.shape)
        expected[f"{names.get_name(base)}.{kind}"] = tensor
    return expected


def check_gguf(name, config, folder, file, model, tokens, new, rows):
    if name == "glm4_moe":
        refused = subprocess.run([sys.argv[1], "ckpt", "export", folder, file], capture_output=True, text=True)
        check(refused.returncode == 78 and "have no name there" in refused.stderr, f"{name}: {refused.stderr}")
        return
    shoal("ckpt", "export", folder, file, "--type", "f32")
    check_generated(f"{name} from GGUF", file, tokens, new, rows)
    if name == "mixtral":  # transformers keeps its experts otherwise than its files
        return
    written = {tensor.name: torch.from_numpy(tensor.data.copy()) for tensor in gguf.GGUFReader(file).tensors}
    if name == "llama3":
        # 6, 29 and 135 positions a wave: kept, between, divided by 8.
        share = (32 / 29.16 - 1) / 3
        factors = torch.tensor([1, 1 / ((1 - share) / 8 + share), 8])
        check(torch.allclose(written.pop("rope_freqs.weight"), factors, rtol=1e-3), "llama3: factors of the frequencies")
    expected = expected_in_gguf(name, config, model)
    check(written.keys() == expected.keys(), f"{name}: other tensors: {written.keys() ^ expected.keys()}")
    for key in expected:
        check(torch.equal(written[key], expected[key]), f"{name}: {key} differs")


def main():
    transformers.utils.logging.disable_progress_bar()
    tokenizer = small_tokenizer()
    tokens = tokenizer(PROMPT)["input_ids"]
    with tempfile.TemporaryDirectory() as place:
        for name, config in families(tokenizer):
            folder, imported, exported = (os.path.join(place, name, part) for part in ("theirs", "ours", "back"))
            model = drawn(config)
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
            new, rows = greedy(model, tokens)
            apart = check_generated(name, folder, tokens, new, rows)
            shoal("ckpt", "import", folder, imported)
            if name == "llama":
                check_checkpoint(imported, model)
            shoal("ckpt", "export", imported, exported)
            check_exported(name, exported, model, tokenizer, tokens)
            check_gguf(name, config, folder, os.path.join(place, f"{name}.gguf"), model, tokens, new, rows)
            print(f"{name}: log-probabilities within {apart:.1e}, the same text, exported and loaded", flush=True)


if __name__ == "__main__":
    main()
