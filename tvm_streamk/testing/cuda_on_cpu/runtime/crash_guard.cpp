// SPDX-License-Identifier: Apache-2.0
#include "crash_guard.h"

#include <csetjmp>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "state.h"

namespace cuda_on_cpu {
namespace {

constexpr int guarded_signals[] = {SIGSEGV, SIGBUS, SIGFPE};
constexpr int guarded_count = 3;
constexpr size_t signal_stack_bytes = 64 * 1024;

sigjmp_buf recovery_point;
char* message;
size_t message_bytes;

const char* kind_of(int signal_number, const void* address) {
  if (signal_number == SIGFPE) return "divides an integer by zero, at instruction";
  if (StackPool::is_guard(current->stack, address)) return "overflows its stack, at address";
  return "touches memory that isn't mapped, at address";
}

void on_signal(int signal_number, siginfo_t* information, void*) {
  if (current == nullptr) {
    // Not a kernel's doing: the default action follows when the access is repeated.
    std::signal(signal_number, SIG_DFL);
    return;
  }
  std::snprintf(message, message_bytes, "%s %s %p", name_of(*current).c_str(),
                kind_of(signal_number, information->si_addr), information->si_addr);
  siglongjmp(recovery_point, 1);
}

// Own handlers for as long as this lives: Python's fault handler gets its signals back.
class SignalHandlers {
 public:
  SignalHandlers() : stack_(std::malloc(signal_stack_bytes)) {
    stack_t own_stack = {};
    own_stack.ss_sp = stack_;
    own_stack.ss_size = signal_stack_bytes;
    sigaltstack(&own_stack, &old_stack_);
    struct sigaction action = {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    for (int i = 0; i < guarded_count; ++i) sigaction(guarded_signals[i], &action, &old_[i]);
  }
  ~SignalHandlers() {
    for (int i = 0; i < guarded_count; ++i) sigaction(guarded_signals[i], &old_[i], nullptr);
    sigaltstack(&old_stack_, nullptr);
    std::free(stack_);
  }
  SignalHandlers(const SignalHandlers&) = delete;
  SignalHandlers& operator=(const SignalHandlers&) = delete;

 private:
  void* stack_;
  stack_t old_stack_ = {};
  struct sigaction old_[guarded_count] = {};
};

}  // namespace

bool run_guarded(void (*action)(), char* description, size_t description_bytes) {
  message = description;
  message_bytes = description_bytes;
  SignalHandlers handlers;
  if (sigsetjmp(recovery_point, 1) != 0) return false;
  action();
  return true;
}

}  // namespace cuda_on_cpu
