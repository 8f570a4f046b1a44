//go:build !purego

#include "textflag.h"

// Two adjacent bytes are looked up three times: the first one's high nibble, its low
// nibble, the second one's high nibble. Each entry is a set of faults that the nibble is
// consistent with; a fault stands when all three sets hold it (Keiser and Lemire,
// "Validating UTF-8 in less than one instruction per byte", arXiv:2010.03090).
//
// Faults: 01 lead without continuation, 02 continuation without lead, 04 overlong of
// three, 08 above U+10FFFF, 10 surrogate, 20 overlong of two, 40 overlong of four or far
// above U+10FFFF, 80 two continuations (a fault unless a longer lead stands before them).
DATA firstHigh<>+0(SB)/8, $0x0202020202020202
DATA firstHigh<>+8(SB)/8, $0x4915012180808080
GLOBL firstHigh<>(SB), RODATA|NOPTR, $16
DATA firstLow<>+0(SB)/8, $0xcbcbcb8b8383a3e7
DATA firstLow<>+8(SB)/8, $0xcbcbdbcbcbcbcbcb
GLOBL firstLow<>(SB), RODATA|NOPTR, $16
DATA secondHigh<>+0(SB)/8, $0x0101010101010101
DATA secondHigh<>+8(SB)/8, $0x01010101babaaee6
GLOBL secondHigh<>(SB), RODATA|NOPTR, $16

// func utf8BlocksAVX2(p *byte, n int) bool
//
// Checks the first n bytes, a multiple of 32, for every fault but a sequence that is cut
// off by their end.
TEXT ·utf8BlocksAVX2(SB), NOSPLIT, $0-17
	MOVQ p+0(FP), SI
	MOVQ n+8(FP), CX
	VBROADCASTI128 firstHigh<>(SB), Y10
	VBROADCASTI128 firstLow<>(SB), Y11
	VBROADCASTI128 secondHigh<>(SB), Y12
	MOVL $0x0f, R8
	VMOVD R8, X13
	VPBROADCASTB X13, Y13
	MOVL $0x60, R8           // a lead of three or four, less 0x60, keeps its top bit
	VMOVD R8, X8
	VPBROADCASTB X8, Y8
	MOVL $0x70, R8           // a lead of four, less 0x70, keeps its top bit
	VMOVD R8, X9
	VPBROADCASTB X9, Y9
	MOVL $0x80, R8
	VMOVD R8, X7
	VPBROADCASTB X7, Y7
	VPXOR Y14, Y14, Y14      // faults
	VPXOR Y15, Y15, Y15      // the block before
	ADDQ SI, CX

block:
	CMPQ SI, CX
	JGE  done
	VMOVDQU (SI), Y0
	ADDQ $32, SI
	VPERM2I128 $0x21, Y0, Y15, Y1
	VPALIGNR $15, Y1, Y0, Y2 // one byte back
	VPALIGNR $14, Y1, Y0, Y3 // two bytes back
	VPALIGNR $13, Y1, Y0, Y4 // three bytes back
	VPSRLW $4, Y2, Y5
	VPAND  Y13, Y5, Y5
	VPSHUFB Y5, Y10, Y5
	VPAND  Y13, Y2, Y2
	VPSHUFB Y2, Y11, Y2
	VPAND  Y2, Y5, Y5
	VPSRLW $4, Y0, Y6
	VPAND  Y13, Y6, Y6
	VPSHUFB Y6, Y12, Y6
	VPAND  Y6, Y5, Y5
	VPSUBUSB Y8, Y3, Y3
	VPSUBUSB Y9, Y4, Y4
	VPOR   Y3, Y4, Y4
	VPAND  Y7, Y4, Y4        // where two continuations are what there must be
	VPXOR  Y5, Y4, Y4
	VPOR   Y4, Y14, Y14
	VMOVDQA Y0, Y15
	JMP  block

done:
	VPTEST Y14, Y14
	SETEQ ret+16(FP)
	VZEROUPPER
	RET
