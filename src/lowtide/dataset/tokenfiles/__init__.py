"""File formats of token ids: one module per format, a row for each in `table`.

```
npy       NumPy's header, then the ids           raw        ids and nothing else (nanoGPT's .bin)
llmc      llm.c's header of 1,024 bytes          megatron   .bin, and .idx with places of documents
shards    what `lowtide prepare` writes          mypt       uint32 shards in train and val
streams   TokenFile and TokenStream: the result of opening any format
intact    whether a file still has its checksum
```
"""
