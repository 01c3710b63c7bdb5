"""Stage 5, the network: shape (config), shape from a parameter count (sizing), layers (gpt), files.

GPTConfig --> GPT --> weights (safetensors) --> export (transformers folder)

The modules, in reading order:

shape       config, families, sizing, configjson, moduleconfig (a torch module of the user's)
network     gpt, blocks, rope, loss, targets; tide, tide_blocks, modeling_tide (the tide layout)
kernels     rowkernels, products, attending (CPU); kernels, rotation, headkernels, float8,
            float8_linear (GPU); graphs
decoder     decoder, decoderweights (native code, without torch), rowcaches
files       tensors (names), tensorfiles, tensorheaders, weights, arrayfiles, heldfiles, checksums,
            firstweights
companions  companions, templates, growing (adds tokens)
export      export, gguf, ggufvocabulary, quantization
memory      inference, program, attentionrooms; devices, networks (what evaluation and generation
            load)
"""
