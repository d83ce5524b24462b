// The functions of families/NAME.cc, for the table in families.cc.
#pragma once

#include <vector>

#include "make_model/architecture.h"
#include "make_model/decoder.h"

namespace kvcache::make_model {

void AddLlama4(const Shape& shape, GgufHeader& header);
std::vector<TensorSpec> Llama4Tensors(const Shape& shape);

void AddDeepSeek2(const Shape& shape, GgufHeader& header);
std::vector<TensorSpec> DeepSeek2Tensors(const Shape& shape);

void AddGemma2(const Shape& shape, GgufHeader& header);
std::vector<TensorSpec> Gemma2Tensors(const Shape& shape);

void AddGemma3(const Shape& shape, GgufHeader& header);
std::vector<TensorSpec> Gemma3Tensors(const Shape& shape);
void AddLfm2(const Shape& shape, GgufHeader& header);
void AddLfm2Moe(const Shape& shape, GgufHeader& header);
std::vector<TensorSpec> Lfm2Tensors(const Shape& shape);

void AddQwen3Next(const Shape& shape, GgufHeader& header);
std::vector<TensorSpec> Qwen3NextTensors(const Shape& shape);
void AddQwen35(const Shape& shape, GgufHeader& header);
void AddQwen35Moe(const Shape& shape, GgufHeader& header);
std::vector<TensorSpec> Qwen35Tensors(const Shape& shape);

void AddFalconH1(const Shape& shape, GgufHeader& header);
std::vector<TensorSpec> FalconH1Tensors(const Shape& shape);

void AddNemotronH(const Shape& shape, GgufHeader& header);
void AddNemotronHMoe(const Shape& shape, GgufHeader& header);
std::vector<TensorSpec> NemotronHTensors(const Shape& shape);
void AddMamba2(const Shape& shape, GgufHeader& header);
std::vector<TensorSpec> Mamba2Tensors(const Shape& shape);

void AddGraniteHybrid(const Shape& shape, GgufHeader& header);
std::vector<TensorSpec> GraniteHybridTensors(const Shape& shape);

void AddGemma3n(const Shape& shape, GgufHeader& header);
std::vector<TensorSpec> Gemma3nTensors(const Shape& shape);

void AddGemma4(const Shape& shape, GgufHeader& header);
std::vector<TensorSpec> Gemma4Tensors(const Shape& shape);
void AddGemma4Assistant(const Shape& shape, GgufHeader& header);
std::vector<TensorSpec> Gemma4AssistantTensors(const Shape& shape);

void AddGptOss(const Shape& shape, GgufHeader& header);
std::vector<TensorSpec> GptOssTensors(const Shape& shape);

void AddMllama(const Shape& shape, GgufHeader& header);
std::vector<TensorSpec> MllamaTensors(const Shape& shape);

// Sets the pooling's key and the labels of a reranker, if the shape has them.
void AddPooling(std::string_view architecture, const Shape& shape, GgufHeader& header);
void AddBert(const Shape& shape, GgufHeader& header);
std::vector<TensorSpec> BertTensors(const Shape& shape);
void AddJinaBertV2(const Shape& shape, GgufHeader& header);
std::vector<TensorSpec> JinaBertV2Tensors(const Shape& shape);
void AddJinaBertV3(const Shape& shape, GgufHeader& header);
std::vector<TensorSpec> JinaBertV3Tensors(const Shape& shape);
void AddNomicBert(const Shape& shape, GgufHeader& header);
void AddNomicBertMoe(const Shape& shape, GgufHeader& header);
std::vector<TensorSpec> NomicBertTensors(const Shape& shape);
void AddModernBert(const Shape& shape, GgufHeader& header);
std::vector<TensorSpec> ModernBertTensors(const Shape& shape);
void AddGemmaEmbedding(const Shape& shape, GgufHeader& header);
std::vector<TensorSpec> GemmaEmbeddingTensors(const Shape& shape);

void AddT5(const Shape& shape, GgufHeader& header);
std::vector<TensorSpec> T5Tensors(const Shape& shape);

}  // namespace kvcache::make_model
