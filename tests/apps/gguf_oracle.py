"""GGUF files as the package gguf, which llama.cpp publishes, reads and writes them: models with drawn weights in every type that Shoal reads, to
a checkpoint and back into every type that it writes. Values must be those that gguf computes, blocks bit for bit those that it makes.
Argument: the program. Exit code 77: this Python has no gguf."""
import os
import sys
import tempfile

from oracle import check, shoal

try:
    import gguf
    import numpy
except ImportError as error:
    print(f"this Python cannot import gguf ({error}): tools/setup_python.sh brings it")
    sys.exit(77)

Type = gguf.GGMLQuantizationType
HIDDEN, HEADS, PAIRS, HEAD, FFN, VOCAB, CONTEXT = 256, 4, 2, 64, 256, 70, 32
# Where the halves lie in blocks that gguf reads and does not make.
HALVES = {Type.Q2_K: (80, 82), Type.Q3_K: (108,), Type.Q4_K: (0, 2), Type.Q5_K: (0, 2), Type.Q6_K: (208,)}


def shapes(name):
    """The tensors of a model of two blocks, as llama.cpp names them: rows first."""
    both = lambda tensor, rows, *columns: {f"{tensor}.weight": (rows, *columns), f"{tensor}.bias": (rows,)}
    tensors = {"token_embd.weight": (VOCAB, HIDDEN)}
    norm = both if name == "gpt2" else lambda tensor, size: {f"{tensor}.weight": (size,)}
    for layer in range(2):
        block = f"blk.{layer}."
        tensors |= norm(block + "attn_norm", HIDDEN) | norm(block + "ffn_norm", HIDDEN)
        if name == "gpt2":
            tensors |= both(block + "attn_qkv", 3 * HIDDEN, HIDDEN) | both(block + "attn_output", HIDDEN, HIDDEN) | both(block + "ffn_up", FFN, HIDDEN) | both(block + "ffn_down", HIDDEN, FFN)
            continue
        for part, heads in (("q", HEADS), ("k", PAIRS), ("v", PAIRS)):
            made = both(f"{block}attn_{part}", heads * HEAD, HIDDEN)
            tensors |= made if name == "qwen2" else {key: shape for key, shape in made.items() if key.endswith("weight")}
        if name == "qwen3":
            tensors |= {block + "attn_q_norm.weight": (HEAD,), block + "attn_k_norm.weight": (HEAD,)}
        tensors[block + "attn_output.weight"] = (HIDDEN, HEADS * HEAD)
        if name == "mixtral":
            tensors |= {block + "ffn_gate_inp.weight": (3, HIDDEN), block + "ffn_gate_exps.weight": (3, FFN, HIDDEN), block + "ffn_up_exps.weight": (3, FFN, HIDDEN),
                        block + "ffn_down_exps.weight": (3, HIDDEN, FFN)}
        else:
            tensors |= {block + "ffn_gate.weight": (FFN, HIDDEN), block + "ffn_up.weight": (FFN, HIDDEN), block + "ffn_down.weight": (HIDDEN, FFN)}
    tensors |= norm("output_norm", HIDDEN)
    if name == "gpt2":
        tensors["position_embd.weight"] = (CONTEXT, HIDDEN)
    if name in ("llama", "qwen2"):
        tensors["output.weight"] = (VOCAB, HIDDEN)
    return tensors


def drawn_blocks(generator, shape, type):
    """Blocks in which every bit is drawn, but for the halves, which are numbers."""
    elements, size = gguf.GGML_QUANT_SIZES[type]
    blocks = generator.integers(0, 256, (*shape[:-1], shape[-1] // elements, size), dtype=numpy.uint8)
    for at in HALVES[type]:
        halves = generator.normal(0, 0.1, blocks.shape[:-1]).astype(numpy.float16)
        blocks[..., at:at + 2] = halves[..., None].view(numpy.uint8)
    return blocks.reshape(*shape[:-1], -1)


def write(path, name, matrix_type):
    """Writes a model with drawn weights; returns its tensors as gguf computes them back."""
    architecture = "llama" if name == "mixtral" else name
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name(name)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(2)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    if name == "gpt2":
        writer.add_layer_norm_eps(1e-5)
    else:
        writer.add_head_count_kv(PAIRS)
        writer.add_layer_norm_rms_eps(1e-6)
        writer.add_rope_freq_base(500000.0)
        writer.add_key_length(HEAD)
        writer.add_value_length(HEAD)
        writer.add_vocab_size(VOCAB)
    if name == "mixtral":
        writer.add_expert_count(3)
        writer.add_expert_used_count(2)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(["a", "Ġ", "aĠ"] + [f"t{i}" for i in range(3, VOCAB - 1)] + ["<|end|>"])
    writer.add_token_types([gguf.TokenType.NORMAL] * (VOCAB - 1) + [gguf.TokenType.CONTROL])
    writer.add_token_merges(["a Ġ"])
    writer.add_eos_token_id(VOCAB - 1)
    generator = numpy.random.default_rng(7)
    values = {}
    for tensor, shape in shapes(name).items():
        drawn = generator.normal(0, 0.5, shape).astype(numpy.float32)
        type = matrix_type if len(shape) > 1 else Type.F32
        data = drawn_blocks(generator, shape, type) if type in HALVES else gguf.quantize(drawn, type)
        writer.add_tensor(tensor, data, raw_dtype=type)
        values[tensor] = gguf.dequantize(data, type).astype(numpy.float32)
    if name == "llama":
        # Llama 3.1's frequencies, which convert_hf_to_gguf writes as a tensor: theta 500000, stretched by 8 from a context of 8192.
        frequencies = 1 / 500000.0 ** (numpy.arange(0, HEAD, 2) / HEAD)
        share = numpy.clip((8192 * frequencies / (2 * numpy.pi) - 1) / 3, 0, 1)
        values["rope_freqs.weight"] = (1 / ((1 - share) / 8 + share)).astype(numpy.float32)
        writer.add_tensor("rope_freqs.weight", values["rope_freqs.weight"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return values


def check_file(path, name, written, values, original):
    """What gguf reads from the file that Shoal wrote."""
    reader = gguf.GGUFReader(path)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    check(tensors.keys() == values.keys(), f"{name}: other tensors: {tensors.keys() ^ values.keys()}")
    for key, expected in values.items():
        tensor = tensors[key]
        small = expected.ndim == 1 or key == "position_embd.weight" or key.endswith("ffn_gate_inp.weight")
        type = Type.F32 if small else written
        check(tensor.tensor_type == type, f"{name}: {key} is {tensor.tensor_type.name}, not {type.name}")
        data = gguf.quantize(expected, type)
        if key == "rope_freqs.weight":
            check(numpy.allclose(tensor.data, expected, rtol=1e-6), f"{name}: {key} differs")
        else:
            check(numpy.array_equal(tensor.data.view(numpy.uint8), data.view(numpy.uint8)), f"{name}: {key} differs as {type.name}")
    before = gguf.GGUFReader(original)
    for key, field in before.fields.items():
        if key.startswith(("tokenizer.", before.fields["general.architecture"].contents() + ".")):
            check(key in reader.fields and reader.fields[key].contents() == field.contents(), f"{name}: key {key} differs")


def main():
    written = {"f32": Type.F32, "f16": Type.F16, "bf16": Type.BF16, "q8_0": Type.Q8_0}
    read = {"gpt2": Type.Q4_0, "llama": Type.Q4_1, "mixtral": Type.Q8_0, "qwen2": Type.F16, "qwen3": Type.BF16, "llama f32": Type.F32, "llama q5_0": Type.Q5_0, "llama q5_1": Type.Q5_1,
            "llama q2_k": Type.Q2_K, "llama q3_k": Type.Q3_K, "llama q4_k": Type.Q4_K, "llama q5_k": Type.Q5_K, "llama q6_k": Type.Q6_K}
    with tempfile.TemporaryDirectory() as place:
        for number, (case, type) in enumerate(read.items()):
            name = case.split()[0]
            original, imported = os.path.join(place, f"{number}.gguf"), os.path.join(place, f"{number}")
            values = write(original, name, type)
            shoal("ckpt", "import", original, imported)
            for word in written if case == name else ["f32"]:
                back = os.path.join(place, f"{number}-{word}.gguf")
                shoal("ckpt", "export", imported, back, "--type", word)
                check_file(back, case, written[word], values, original)
            print(f"{name}: {type.name} read, the same values written", flush=True)


main()
