#include "textflag.h"

// func now() uint64
// The time-stamp counter, as the other systems read it.
TEXT ·now(SB), NOSPLIT, $0-8
	RDTSC
	SHLQ $32, DX
	ORQ  DX, AX
	MOVQ AX, ret+0(FP)
	RET
