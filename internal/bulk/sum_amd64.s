//go:build !race

#include "textflag.h"

// One stripe of 64 bytes, read once: to dst past the cache, and into the accumulators Y8 (lanes
// 0 to 3) and Y9 (4 to 7) with 64 bytes of the secret, that move by 8 from stripe to stripe.
#define STRIPE(n) \
	VMOVDQU    (n*64)(SI), Y0     \
	VMOVDQU    (n*64+32)(SI), Y1  \
	VMOVNTDQ   Y0, (n*64)(DI)     \
	VMOVNTDQ   Y1, (n*64+32)(DI)  \
	VPXOR      (n*8)(R8), Y0, Y2    \
	VPXOR      (n*8+32)(R8), Y1, Y3 \
	VPSHUFD    $0x31, Y2, Y4      \
	VPSHUFD    $0x31, Y3, Y5      \
	VPSHUFD    $0x4e, Y0, Y0      \
	VPSHUFD    $0x4e, Y1, Y1      \
	VPMULUDQ   Y4, Y2, Y2         \
	VPMULUDQ   Y5, Y3, Y3         \
	VPADDQ     Y0, Y8, Y8         \
	VPADDQ     Y1, Y9, Y9         \
	VPADDQ     Y2, Y8, Y8         \
	VPADDQ     Y3, Y9, Y9

// The end of a block: acc = (acc ^ acc>>47 ^ secret) * prime, 64 bits times 32.
#define SCRAMBLE(acc, secret) \
	VPSRLQ   $47, acc, Y0    \
	VPXOR    Y0, acc, acc    \
	VPXOR    secret, acc, acc \
	VPSRLQ   $32, acc, Y1    \
	VPMULUDQ Y10, acc, acc   \
	VPMULUDQ Y10, Y1, Y1     \
	VPSLLQ   $32, Y1, Y1     \
	VPADDQ   Y1, acc, acc

// func copySumBlocks(acc *[8]uint64, secret *[192]byte, dst, src *byte, blocks int)
TEXT ·copySumBlocks(SB), NOSPLIT, $0-40
	MOVQ acc+0(FP), AX
	MOVQ secret+8(FP), R8
	MOVQ dst+16(FP), DI
	MOVQ src+24(FP), SI
	MOVQ blocks+32(FP), CX
	VMOVDQU (AX), Y8
	VMOVDQU 32(AX), Y9
	MOVQ $0x9e3779b1, BX
	VMOVQ BX, X10
	VPBROADCASTQ X10, Y10

block:
	PREFETCHNTA 1024(SI)
	PREFETCHNTA 1088(SI)
	STRIPE(0)
	STRIPE(1)
	PREFETCHNTA 1152(SI)
	PREFETCHNTA 1216(SI)
	STRIPE(2)
	STRIPE(3)
	PREFETCHNTA 1280(SI)
	PREFETCHNTA 1344(SI)
	STRIPE(4)
	STRIPE(5)
	PREFETCHNTA 1408(SI)
	PREFETCHNTA 1472(SI)
	STRIPE(6)
	STRIPE(7)
	PREFETCHNTA 1536(SI)
	PREFETCHNTA 1600(SI)
	STRIPE(8)
	STRIPE(9)
	PREFETCHNTA 1664(SI)
	PREFETCHNTA 1728(SI)
	STRIPE(10)
	STRIPE(11)
	PREFETCHNTA 1792(SI)
	PREFETCHNTA 1856(SI)
	STRIPE(12)
	STRIPE(13)
	PREFETCHNTA 1920(SI)
	PREFETCHNTA 1984(SI)
	STRIPE(14)
	STRIPE(15)
	SCRAMBLE(Y8, 128(R8))
	SCRAMBLE(Y9, 160(R8))
	ADDQ $1024, SI
	ADDQ $1024, DI
	DECQ CX
	JNZ  block
	SFENCE
	VMOVDQU Y8, (AX)
	VMOVDQU Y9, 32(AX)
	VZEROUPPER
	RET
