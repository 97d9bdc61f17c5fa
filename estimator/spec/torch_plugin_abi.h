/* The border between memest and its LibTorch plugin, memest_torch.so: C types only, both sides speak JSON. */
#pragma once

#define MEMEST_TORCH_PLUGIN_ABI 1

/* int memest_torch_abi(void): MEMEST_TORCH_PLUGIN_ABI of the plugin. */
typedef int (*memest_torch_abi_fn)(void);
/* Runs a request, an object whose "what" is "version", "record" or "probe". The reply is an object, too: its "error" says what went wrong.
 * Freed with free(). Never throws. */
typedef char* (*memest_torch_run_fn)(const char* request);
