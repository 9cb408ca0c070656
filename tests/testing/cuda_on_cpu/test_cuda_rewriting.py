# SPDX-License-Identifier: Apache-2.0
"""The text of rewritten kernels; nothing is compiled here."""

from __future__ import annotations

import pytest

from tvm_streamk.testing.cuda_on_cpu import UnsupportedCode
from tvm_streamk.testing.cuda_on_cpu.inline_assembly import find_assembly
from tvm_streamk.testing.cuda_on_cpu.ptx_instructions import emulation_of
from tvm_streamk.testing.cuda_on_cpu.race_reports import parse_races
from tvm_streamk.testing.cuda_on_cpu.rewriting import rewrite
from tvm_streamk.testing.cuda_on_cpu.source_text import joined_string, split_outside_brackets

HEAD = 'extern "C" __global__ void __launch_bounds__(32) {name}(float* __restrict__ x)'
KERNEL = HEAD + " {{\n{body}\n}}\n"


def rewritten(body: str) -> str:
    """A kernel's body as it is compiled."""
    return rewrite(KERNEL.format(name="kernel", body=body))


def test_lines_of_the_source_keep_their_numbers() -> None:
    body = (
        "__shared__ alignas(16)\n  float a[4];\n"
        'asm volatile(\n  "bar.sync 0;"\n  ::\n  : "memory"\n);\n'
        "extern __shared__ __align__(64)\n  char d[];\nx[0] = a[0];"
    )
    source = KERNEL.format(name="kernel", body=body)
    result = rewrite(source).split('#line 1 "kernel.cu"\n')[1].splitlines()
    assert result.index("x[0] = a[0];") == source.splitlines().index("x[0] = a[0];")


def test_every_kernel_is_registered_once() -> None:
    kernels = [KERNEL.format(name=name, body="") for name in ("first", "second")]
    text = rewrite(HEAD.format(name="first") + ";\n" + "".join(kernels))
    assert text.count("CUDA_ON_CPU_KERNEL(first)") == text.count("CUDA_ON_CPU_KERNEL(second)") == 1


def test_shared_declarations_of_all_forms() -> None:
    text = rewritten(
        "__shared__ alignas(64) half a[576];\n__shared__ volatile int flag;\n"
        "__shared__ nvcuda::wmma::fragment<int, 1> f[2][3];\n"
        "extern __shared__ __align__(64) uchar d[];"
    )
    assert 'auto& a = cuda_on_cpu::declare_shared<half[576]>(0, "a", 64);' in text
    assert 'auto& flag = cuda_on_cpu::declare_shared<volatile int>(1, "flag", 1);' in text
    assert "declare_shared<nvcuda::wmma::fragment<int, 1>[2][3]>(2" in text
    assert 'uchar* const d = cuda_on_cpu::declare_dynamic_shared<uchar>("d");' in text


def test_restrict_is_dropped() -> None:
    assert "__restrict__" not in rewritten("")


def test_shared_declaration_that_is_not_understood() -> None:
    with pytest.raises(UnsupportedCode, match=r"line 2: .*'__shared__ float a\[4\], b\[4\];'"):
        rewritten("__shared__ float a[4], b[4];")


def test_source_without_a_kernel() -> None:
    with pytest.raises(UnsupportedCode, match="no '__global__ void' function"):
        rewrite("int f() { return 0; }")


def emulated(statement: str) -> str:
    """C++ of one statement, without the package's namespace."""
    (assembly,) = find_assembly(statement)
    return emulation_of(assembly).replace("cuda_on_cpu::ptx::", "")


def test_operands_predicates_and_declared_registers() -> None:
    found = emulated(
        'asm volatile("{ .reg .pred p; setp.ne.s32 p, %1, 0; @!p st.shared.v2.u32 [%0], {%2, 7}; }"'
        ' :: "r"(address + 4), "r"(flags[f(1, 2)]), "r"((unsigned)x));'
    )
    assert found == (
        "{ bool ptx_register_p; "
        "{ ptx_register_p = int32_t((flags[f(1, 2)])) != int32_t(0); } "
        "if (!ptx_register_p) { st_shared<uint32_t>((address + 4), 0, ((unsigned)x)); "
        "st_shared<uint32_t>((address + 4), 1, 7); } }"
    )


def test_address_conversion_as_tvm_writes_it() -> None:
    found = emulated(
        'asm volatile ("{ .reg .u64 smem_int; cvta.to.shared.u64 smem_int, %1; '
        'cvt.u32.u64 %0, smem_int; }"\n : "=r"(smem_int) : "l"(smem_ptr));'
    )
    assert "ptx_register_smem_int = to_shared((smem_ptr));" in found
    assert "(smem_int) = ptx_register_smem_int;" in found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cp.async.wait_group 3;", "cp_async_wait_group(3);"),
        ("fence.acq_rel.gpu;", "__threadfence();"),
        ("membar.gl;", "__threadfence();"),
        ("fence.acq_rel.cta;", "{ ; }"),
        ("bar.sync 0;", "__syncthreads(__LINE__);"),
        ("// nothing\n", "{  }"),
    ],
)
def test_instructions_without_operands(text: str, expected: str) -> None:
    escaped = text.replace("\n", "\\n")
    assert expected in emulated(f'asm volatile("{escaped}" ::: "memory");')


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ('asm volatile("wgmma.fence.sync.aligned;");', "'wgmma.fence.*' is not emulated"),
        ('asm volatile("mov.u32 %0, %globaltimer_lo;" : "=r"(x));', "operand '%globaltimer_lo'"),
        ('asm volatile("mov.u32 %0, %2;" : "=r"(x) : "r"(y));', "operand '%2' is not understood"),
        ('asm volatile("bar.sync 1;");', "named barriers are not emulated"),
        ('asm volatile("{ .reg .b128 q; }");', r"registers of type \.b128 are not emulated"),
        ('asm volatile("mov.u32 %0, 1;" : "=r" x);', "operand .* of an asm is not understood"),
        ('asm volatile("LOOP: bra LOOP;");', "labels in an asm are not emulated"),
        ('asm volatile("membar.gl;"', "a bracket is not closed"),
    ],
)
def test_assembly_that_is_not_emulated(statement: str, message: str) -> None:
    with pytest.raises(UnsupportedCode, match=message):
        emulated(statement)


def test_splitting_respects_brackets_and_strings() -> None:
    assert split_outside_brackets('f(a, b), "x, y" , c[1]', ",") == ["f(a, b)", '"x, y"', "c[1]"]
    assert split_outside_brackets('"text" :: "r"(a::b)', ":") == ['"text"', "", '"r"(a::b)']
    assert split_outside_brackets("  ", ",") == []
    assert joined_string('"one\\n"  "two\\t%%3"') == "one\ntwo\t%3"


def test_reports_without_frames_are_kept() -> None:
    report = """WARNING: ThreadSanitizer: data race (pid=1)
  Write of size 4 at 0x10 by thread T2:
    #0 kernel /x/kernel.cu:2 (y+0x1)

  Previous atomic write of size 4 at 0x10 by main thread:
    [failed to restore the stack]

  Thread T2 'block (1,0,0) thread (0,0,0)' (tid=0, running) created by main thread at:
"""
    (race,) = parse_races(report, "memory 0xc 8 buffer", "first\nsecond\n")
    assert [access.line for access in race.accesses] == [2, 0]
    assert [access.text for access in race.accesses] == ["second", ""]
    assert race.accesses[0].thread == "block (1,0,0) thread (0,0,0)"
    assert race.accesses[1].kind == "atomic write"
    assert race.memory == "buffer, byte 4"
