// The class _native.Vocabulary: a vocabulary and the encoders that use it.
#pragma once

#include <memory>

#include "tokenizer/encoding/encode_jobs.hpp"
#include "tokenizer/encoding/vocabulary.hpp"

namespace lowtide {

struct NativeVocabulary {
  std::shared_ptr<const Vocabulary> vocabulary;
  EncoderPool pool;
};

}  // namespace lowtide
