// SPDX-License-Identifier: Apache-2.0
// Turns a crash of a kernel into an error of the launch, where no sanitizer wants the signal.
#pragma once

namespace cuda_on_cpu {

// Runs `action`; false if a signal of a kernel's memory access ended it, which `description`
// then says. The caller's stack survives, and the kernel's fibres are left as they were.
bool run_guarded(void (*action)(), char* description, unsigned long description_bytes);

}  // namespace cuda_on_cpu
