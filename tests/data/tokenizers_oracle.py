"""Compares the tokens of `shoal data encode` with those of Hugging Face's tokenizers, over text in many scripts, code, signs of every Unicode
block and odd blanks, for the pre-tokenizers of GPT-2, Llama 3, Qwen and SmolLM. Arguments: a program with the data commands; how many MB of text.
Exit code 77: this Python has no tokenizers."""
import json
import os
import random
import subprocess
import sys
import tempfile
import unicodedata
from pathlib import Path

try:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
except ImportError:
    print("this Python has no package tokenizers: tools/setup_python.sh brings it")
    sys.exit(77)

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
SENTENCES = [
    "The fish don't sleep; they'VE said it's 12345 times, haven't they?", "Größe und Straße, naïve façade — «ça va?»", "В чащах юга жил бы цитрус? Да!",
    "大きさは１２３４です。日本語のテキスト。", "안녕하세요 세계, 2024년", "مرحبا بالعالم ١٢٣", "नमस्ते दुनिया १२३", "ñandú é e\u0301 ﬁ Å \u212b", "🙂🙃👩‍👩‍👧 ½ ² Ⅷ",
    "x\u00a0y\u2003z\u3000w\u0085v\u180eu\u200bt", "<|endoftext|>a<|im_start|>b <|im_end|>\n<tool>c</tool>", "'ſ 'S 'LL i̇İ", "\r\n\t \x0b\x0c \x00\x7f", "ﷺ각각\u0344"]


def corpus(size):
    source = Path(__file__).resolve().parents[2]
    files = sorted(path for folder in ("src", "docs", "tests") for path in (source / folder).rglob("*") if path.suffix in (".cpp", ".h", ".md", ".py"))
    code = "".join(path.read_text(encoding="utf-8") for path in files)
    generator = random.Random(1)
    # Characters of Unicode 3.2, and emoji: the libraries know different versions of Unicode, and what newer ones add has no class in older ones.
    known = [chr(code) for code in range(0x20, 0x30000) if unicodedata.ucd_3_2_0.category(chr(code)) not in ("Cn", "Cs")]
    blocks = [[c for c in known if begin <= ord(c) < end] for begin, end in ((0x20, 0x600), (0x600, 0x3000), (0x3000, 0xe000), (0xe000, 0x10000), (0x10000, 0x30000))]
    blocks.append([chr(code) for code in range(0x1f300, 0x1f650)])
    pieces, length = [], 0
    while length < size:
        kind = generator.randrange(4)
        if kind == 0:
            at = generator.randrange(len(code))
            piece = code[at:at + generator.randrange(4000)]
        elif kind == 1:
            piece = "".join(generator.choice(SENTENCES) for _ in range(generator.randrange(40)))
        elif kind == 2:
            piece = "".join(generator.choice(" \t\n\r'sStTlLdD0123456789aZé_.,(){}<|>") for _ in range(generator.randrange(400)))
        else:
            piece = "".join(generator.choice(generator.choice(blocks)) for _ in range(generator.randrange(200)))
        pieces.append(piece)
        length += len(piece.encode("utf-8"))
    return "".join(pieces)


def families():
    level = lambda use_regex: pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    split = lambda pattern: pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), level(False)])
    yield "gpt2", None, level(True), {}
    yield "llama3", None, split(LLAMA3), {"ignore_merges": True}
    yield "qwen", normalizers.NFC(), split(QWEN), {}
    yield "smollm", None, pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), level(True)]), {"unk_token": "<|endoftext|>"}


def trained(name, normalizer, pretokenizer, options, text):
    tokenizer = Tokenizer(models.BPE(**options))
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pretokenizer
    tokenizer.decoder = decoders.ByteLevel()
    # Without some bytes in SmolLM's vocabulary, as in the real one.
    alphabet = [c for c in pre_tokenizers.ByteLevel.alphabet() if name != "smollm" or c not in "òóôÆ"]
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(vocab_size=3000, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([text], trainer)
    tokenizer.add_tokens([AddedToken("<tool>", normalized=True), AddedToken("</tool>", normalized=False)])
    if name == "llama3":
        tokenizer.post_processor = processors.TemplateProcessing(single="<|im_start|> $A", pair="<|im_start|> $A $B", special_tokens=[("<|im_start|>", tokenizer.token_to_id("<|im_start|>"))])
    return tokenizer


def main():
    program, megabytes = sys.argv[1], float(sys.argv[2])
    text = corpus(int(megabytes * 1e6))
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "text")
        Path(path).write_bytes(text.encode("utf-8"))
        for name, *parts in families():
            tokenizer = trained(name, *parts, text[:200_000])
            file = os.path.join(folder, "tokenizer.json")
            tokenizer.save(file)
            ours = subprocess.run([program, "data", "encode", "--tokenizer", file, path], check=True, capture_output=True, text=True).stdout
            ours = [int(number) for number in ours.split()]
            theirs = tokenizer.encode(text, add_special_tokens=False).ids
            if ours != theirs:
                at = next((i for i, pair in enumerate(zip(ours, theirs)) if pair[0] != pair[1]), min(len(ours), len(theirs)))
                near = tokenizer.decode(theirs[max(at - 8, 0):at + 8], skip_special_tokens=False)
                sys.exit(f"{name}: token {at} of {len(theirs)} is {ours[at:at + 4]}, not {theirs[at:at + 4]}, near {json.dumps(near)}")
            print(f"{name}: the same {len(ours)} tokens of {len(text.encode('utf-8'))} bytes")


if __name__ == "__main__":
    main()
