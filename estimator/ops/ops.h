// The ops that C++ code calls by name, by family. Every record, also those that only graphs call, is in all_ops().
#pragma once
#include "ops/attention.h"
#include "ops/convolution.h"
#include "ops/copy.h"
#include "ops/embedding.h"
#include "ops/factories.h"
#include "ops/loss.h"
#include "ops/matmul.h"
#include "ops/normalization.h"
#include "ops/pointwise.h"
#include "ops/pooling.h"
#include "ops/reductions.h"
#include "ops/views.h"
