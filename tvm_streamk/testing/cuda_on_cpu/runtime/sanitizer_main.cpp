// SPDX-License-Identifier: Apache-2.0
// The program that find_races starts: runs the launches that a job file lists, under the
// sanitizer. Its reports go to the standard error stream; to the standard output go the places of
// buffers ("memory <address> <bytes> <name>"), the fault should there be one ("fault <kind>
// <message>") and at last "done".
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "launch.h"

namespace {

// Lines are "buffer <name> <bytes> <file>" and "launch <kernel> <grid> <block> <dynamic shared
// bytes> <order> <seed> <resident blocks> <number of arguments> <arguments>", where an argument
// is "buffer <number>" or "scalar <integer> <real>".
class Job {
 public:
  explicit Job(const char* path) : input_(path) {}

  bool run() {
    std::string word;
    while (input_ >> word) {
      if (word == "buffer") {
        map_buffer();
      } else if (!launch()) {
        return false;
      }
    }
    return true;
  }

 private:
  template <typename T>
  T next() {
    T value;
    if (!(input_ >> value)) stop("the job file ends early or holds nonsense");
    return value;
  }

  [[noreturn]] static void stop(const char* reason) {
    std::fprintf(stdout, "fault request %s\n", reason);
    std::exit(EXIT_FAILURE);
  }

  // Mapped, not read: the sanitizer remembers four accesses to each word, and a library that
  // copies the file byte by byte would fill the memory of the first word with its own.
  void map_buffer() {
    const auto name = next<std::string>();
    const auto bytes = next<size_t>();
    const auto path = next<std::string>();
    const int file = open(path.c_str(), O_RDONLY);
    // A buffer of no bytes still needs an address.
    const size_t mapped_bytes = bytes > 0 ? bytes : 1;
    void* const data =
        mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    if (file < 0 || data == MAP_FAILED) stop("cannot map a buffer's file");
    close(file);
    std::fprintf(stdout, "memory %p %zu %s\n", data, bytes, name.c_str());
    buffers_.push_back(data);
  }

  cuda_on_cpu::Argument read_argument() {
    cuda_on_cpu::Argument argument = {};
    if (next<std::string>() == "buffer") {
      argument.pointer = buffers_.at(next<size_t>());
    } else {
      argument.integer = next<int64_t>();
      argument.real = std::strtod(next<std::string>().c_str(), nullptr);
    }
    return argument;
  }

  bool launch() {
    CudaOnCpuRequest request = {};
    const auto kernel = next<std::string>();
    request.kernel = kernel.c_str();
    for (uint32_t& extent : request.grid) extent = next<uint32_t>();
    for (uint32_t& extent : request.block) extent = next<uint32_t>();
    request.dynamic_shared_bytes = next<uint64_t>();
    request.order = next<uint32_t>();
    request.seed = next<uint64_t>();
    request.resident_blocks = next<uint32_t>();
    request.argument_count = next<uint32_t>();
    std::vector<cuda_on_cpu::Argument> arguments;
    for (uint32_t i = 0; i < request.argument_count; ++i) arguments.push_back(read_argument());
    request.arguments = arguments.data();
    CudaOnCpuFault fault = {};
    if (cuda_on_cpu_launch(&request, &fault)) return true;
    std::fprintf(stdout, "fault %s %s\n", fault.kind, fault.message);
    return false;
  }

  std::ifstream input_;
  std::vector<void*> buffers_;
};

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) return EXIT_FAILURE;
  Job(arguments[1]).run();
  std::fprintf(stdout, "done\n");
  return EXIT_SUCCESS;
}
