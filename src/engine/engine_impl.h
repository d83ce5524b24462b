// Includes the types that kvcache_engine/engine.h only declares, for sources that use
// Engine::file(), info(), tokenizer() and model().
#pragma once

#include "gguf/gguf.h"
#include "kvcache_engine/engine.h"
#include "model/model.h"
#include "tokenizer/tokenizer.h"
