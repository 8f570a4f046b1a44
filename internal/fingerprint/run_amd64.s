//go:build !purego

#include "textflag.h"

// The bytes that may follow a backslash in the canonical spelling are " \ b f n r t.
// A byte is one of them when its low-nibble entry and its high-nibble entry share a
// bit: bit 0 is for 0x2_, bit 1 for 0x5_, bit 2 for 0x6_, bit 3 for 0x7_.
DATA lowNibble<>+0(SB)/8, $0x00040008000d0000
DATA lowNibble<>+8(SB)/8, $0x0004000200000000
GLOBL lowNibble<>(SB), RODATA|NOPTR, $16
DATA highNibble<>+0(SB)/8, $0x0804020000010000
DATA highNibble<>+8(SB)/8, $0x0000000000000000
GLOBL highNibble<>(SB), RODATA|NOPTR, $16

// func textRunAVX2(p *byte, n int) (run, escapes int, high uint32)
//
// Looks at whole blocks of 64 bytes only. run stops at the first quote that is not
// escaped, control character, or backslash that does not begin a canonical escape; else
// it is where fewer than 64 bytes are left. It never stops between the two bytes of an
// escape.
TEXT ·textRunAVX2(SB), NOSPLIT, $0-36
	MOVQ p+0(FP), SI
	MOVQ n+8(FP), CX
	XORQ AX, AX              // offset of the block
	XORQ DX, DX              // escapes passed
	SUBQ $64, CX             // last offset at which a whole block fits
	JLT  none

	// Every vector instruction is VEX-coded: one legacy MOVQ into X0 beside a dirty upper
	// half costs hundreds of nanoseconds a call (measured).
	MOVL $0x22, R8
	VMOVD R8, X0
	VPBROADCASTB X0, Y0      // "
	MOVL $0x5c, R8
	VMOVD R8, X1
	VPBROADCASTB X1, Y1      // backslash
	MOVL $0x1f, R8
	VMOVD R8, X2
	VPBROADCASTB X2, Y2      // highest control character
	MOVL $0x0f, R8
	VMOVD R8, X13
	VPBROADCASTB X13, Y13
	VBROADCASTI128 lowNibble<>(SB), Y11
	VBROADCASTI128 highNibble<>(SB), Y12
	VPXOR Y15, Y15, Y15      // all bytes seen, for their high bits
	VPXOR Y14, Y14, Y14      // zero
	MOVQ $0xaaaaaaaaaaaaaaaa, DI

block:
	VMOVDQU (SI)(AX*1), Y3
	VMOVDQU 32(SI)(AX*1), Y4
	VPOR Y3, Y15, Y15
	VPOR Y4, Y15, Y15
	VPCMPEQB Y3, Y0, Y5
	VPCMPEQB Y4, Y0, Y6
	VPMINUB Y3, Y2, Y7
	VPMINUB Y4, Y2, Y8
	VPCMPEQB Y3, Y7, Y7
	VPCMPEQB Y4, Y8, Y8
	VPOR Y5, Y7, Y5          // quotes and controls
	VPOR Y6, Y8, Y6
	VPCMPEQB Y3, Y1, Y7      // backslashes
	VPCMPEQB Y4, Y1, Y8
	VPOR Y5, Y6, Y9
	VPOR Y7, Y8, Y10
	VPOR Y9, Y10, Y9
	VPTEST Y9, Y9
	JNZ  some
	ADDQ $64, AX
	CMPQ AX, CX
	JLE  block
	JMP  done

some:
	VPMOVMSKB Y5, R8
	VPMOVMSKB Y6, R9
	SHLQ $32, R9
	ORQ  R9, R8              // R8: quotes and controls
	VPMOVMSKB Y7, R10
	VPMOVMSKB Y8, R11
	SHLQ $32, R11
	ORQ  R11, R10            // R10: backslashes
	JNZ  escaped
	BSFQ R8, R8
	ADDQ R8, AX
	JMP  done

escaped:
	// Which bytes are escaped: those behind a backslash that is not escaped itself. A
	// run of backslashes alternates; adding the run's parity through the carry of one
	// subtraction settles all runs of the block at once.
	LEAQ (R10)(R10*1), R11   // maybe escaped
	ORQ  DI, R11
	SUBQ R10, R11
	XORQ DI, R11             // escapes and what they escape
	MOVQ R11, R13
	XORQ R10, R13            // R13: escaped
	ANDQ R10, R11            // R11: backslashes that escape

	// Which bytes may be escaped.
	VPSHUFB Y3, Y11, Y5
	VPSHUFB Y4, Y11, Y6
	VPSRLW $4, Y3, Y7
	VPSRLW $4, Y4, Y8
	VPAND  Y13, Y7, Y7
	VPAND  Y13, Y8, Y8
	VPSHUFB Y7, Y12, Y7
	VPSHUFB Y8, Y12, Y8
	VPAND  Y5, Y7, Y5
	VPAND  Y6, Y8, Y6
	VPCMPEQB Y14, Y5, Y5
	VPCMPEQB Y14, Y6, Y6
	VPMOVMSKB Y5, R9
	VPMOVMSKB Y6, R12
	SHLQ $32, R12
	ORQ  R12, R9             // R9: bytes that no canonical escape has
	ANDQ R13, R9
	SHRQ $1, R9              // their backslashes
	NOTQ R13
	ANDQ R13, R8             // quotes that end, controls
	ORQ  R9, R8
	JNZ  stop
	POPCNTQ R11, R9
	ADDQ R9, DX
	ADDQ $64, AX
	BTQ  $63, R11            // an escape that runs into the next block begins it
	JCS  split
	CMPQ AX, CX
	JLE  block
	JMP  done

split:
	DECQ DX
	DECQ AX
	CMPQ AX, CX
	JLE  block
	JMP  done

stop:
	// Count the escapes in front of the stop.
	BSFQ R8, R9
	MOVQ R8, R10
	DECQ R10
	NOTQ R8
	ANDQ R10, R8             // bits below the lowest set one
	ANDQ R8, R11
	POPCNTQ R11, R11
	ADDQ R11, DX
	ADDQ R9, AX

done:
	VPMOVMSKB Y15, R8
	MOVQ AX, run+16(FP)
	MOVQ DX, escapes+24(FP)
	MOVL R8, high+32(FP)
	VZEROUPPER
	RET

none:
	MOVQ $0, run+16(FP)
	MOVQ $0, escapes+24(FP)
	MOVL $0, high+32(FP)
	RET

// func textRunAVX512(p *byte, n int) (run, escapes int, high uint32)
//
// textRunAVX2 with 512-bit compares that answer in mask registers: a third of the
// instructions for the same block.
TEXT ·textRunAVX512(SB), NOSPLIT, $0-36
	MOVQ p+0(FP), SI
	MOVQ n+8(FP), CX
	XORQ AX, AX              // offset of the block
	XORQ DX, DX              // escapes passed
	SUBQ $64, CX             // last offset at which a whole block fits
	JLT  none

	MOVL $0x22, R8
	VPBROADCASTB R8, Z0      // "
	MOVL $0x5c, R8
	VPBROADCASTB R8, Z1      // backslash
	MOVL $0x20, R8
	VPBROADCASTB R8, Z2      // lowest character that is no control
	MOVL $0x0f, R8
	VPBROADCASTB R8, Z13
	VBROADCASTI32X4 lowNibble<>(SB), Z11
	VBROADCASTI32X4 highNibble<>(SB), Z12
	VPXORQ Z15, Z15, Z15     // all bytes seen, for their high bits
	MOVQ $0xaaaaaaaaaaaaaaaa, DI

block:
	VMOVDQU8 (SI)(AX*1), Z3
	VPORQ Z3, Z15, Z15
	VPCMPEQB Z3, Z0, K1
	VPCMPUB $1, Z2, Z3, K2
	VPCMPEQB Z3, Z1, K3
	KORQ K1, K2, K1          // quotes and controls
	KORTESTQ K1, K3
	JNE  some
	ADDQ $64, AX
	CMPQ AX, CX
	JLE  block
	JMP  done

some:
	KMOVQ K1, R8             // R8: quotes and controls
	KMOVQ K3, R10            // R10: backslashes
	TESTQ R10, R10
	JNE  escaped
	BSFQ R8, R8
	ADDQ R8, AX
	JMP  done

escaped:
	LEAQ (R10)(R10*1), R11   // as in textRunAVX2
	ORQ  DI, R11
	SUBQ R10, R11
	XORQ DI, R11
	MOVQ R11, R13
	XORQ R10, R13            // R13: escaped
	ANDQ R10, R11            // R11: backslashes that escape
	VPSHUFB Z3, Z11, Z5
	VPSRLW $4, Z3, Z7
	VPANDQ Z13, Z7, Z7
	VPSHUFB Z7, Z12, Z7
	VPTESTNMB Z5, Z7, K4
	KMOVQ K4, R9             // R9: bytes that no canonical escape has
	ANDQ R13, R9
	SHRQ $1, R9              // their backslashes
	NOTQ R13
	ANDQ R13, R8             // quotes that end, controls
	ORQ  R9, R8
	JNE  stop
	POPCNTQ R11, R9
	ADDQ R9, DX
	ADDQ $64, AX
	BTQ  $63, R11            // an escape that runs into the next block begins it
	JCS  split
	CMPQ AX, CX
	JLE  block
	JMP  done

split:
	DECQ DX
	DECQ AX
	CMPQ AX, CX
	JLE  block
	JMP  done

stop:
	BSFQ R8, R9
	MOVQ R8, R10
	DECQ R10
	NOTQ R8
	ANDQ R10, R8             // bits below the lowest set one
	ANDQ R8, R11
	POPCNTQ R11, R11
	ADDQ R11, DX
	ADDQ R9, AX

done:
	VPMOVB2M Z15, K1
	XORL R8, R8
	KORTESTQ K1, K1
	SETNE R8
	MOVQ AX, run+16(FP)
	MOVQ DX, escapes+24(FP)
	MOVL R8, high+32(FP)
	VZEROUPPER
	RET

none:
	MOVQ $0, run+16(FP)
	MOVQ $0, escapes+24(FP)
	MOVL $0, high+32(FP)
	RET
