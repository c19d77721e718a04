//! A system call preserves the vector registers; so does one that is redirected.

use crate::{Case, adopting, run_adopted};
use std::arch::asm;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use tailwater::thread;
use tailwater_testkit::Storm;

pub const CASES: &[Case] = &[
    ("vector_registers_survive_a_wait_and_a_wake", vectors),
    ("the_smallest_stack_has_room_for_a_wait", small_stacks),
];

static WORD: AtomicU32 = AtomicU32::new(0);

/// Calls futex(2) by the C library's `syscall`, which uses no vector register itself, with all of
/// them set. Returns its result and what they are afterwards.
fn futex_with(operation: i32, value: u32, pattern: &[u128; 16]) -> (i64, [u128; 16]) {
    let mut after = [0u128; 16];
    let result: i64;
    // SAFETY: the function is called by its ABI, with six registers and no argument on the stack
    // but zeros; both arrays have 256 bytes.
    unsafe {
        asm!(
            "movdqu xmm0, [r12]; movdqu xmm1, [r12 + 16]; movdqu xmm2, [r12 + 32]; movdqu xmm3, [r12 + 48]",
            "movdqu xmm4, [r12 + 64]; movdqu xmm5, [r12 + 80]; movdqu xmm6, [r12 + 96]; movdqu xmm7, [r12 + 112]",
            "movdqu xmm8, [r12 + 128]; movdqu xmm9, [r12 + 144]; movdqu xmm10, [r12 + 160]",
            "movdqu xmm11, [r12 + 176]; movdqu xmm12, [r12 + 192]; movdqu xmm13, [r12 + 208]",
            "movdqu xmm14, [r12 + 224]; movdqu xmm15, [r12 + 240]",
            "push 0; push 0",
            "call r14",
            "add rsp, 16",
            "movdqu [r13], xmm0; movdqu [r13 + 16], xmm1; movdqu [r13 + 32], xmm2; movdqu [r13 + 48], xmm3",
            "movdqu [r13 + 64], xmm4; movdqu [r13 + 80], xmm5; movdqu [r13 + 96], xmm6; movdqu [r13 + 112], xmm7",
            "movdqu [r13 + 128], xmm8; movdqu [r13 + 144], xmm9; movdqu [r13 + 160], xmm10",
            "movdqu [r13 + 176], xmm11; movdqu [r13 + 192], xmm12; movdqu [r13 + 208], xmm13",
            "movdqu [r13 + 224], xmm14; movdqu [r13 + 240], xmm15",
            in("r12") pattern.as_ptr(), in("r13") after.as_mut_ptr(), in("r14") libc::syscall as *const (),
            in("rdi") libc::SYS_futex, in("rsi") WORD.as_ptr(),
            in("rdx") (operation | libc::FUTEX_PRIVATE_FLAG) as u64, in("rcx") u64::from(value),
            in("r8") 0u64, in("r9") 0u64, lateout("rax") result, clobber_abi("C"),
        );
    }
    (result, after)
}

fn pattern(thread: u8) -> [u128; 16] {
    std::array::from_fn(|n| u128::from_le_bytes([thread ^ (n as u8).wrapping_mul(17); 16]))
}

fn vectors() {
    run_adopted(1, || {
        for round in 0..200 {
            let waiter = thread::spawn(move || {
                let (result, after) = futex_with(libc::FUTEX_WAIT, 0, &pattern(1));
                assert_eq!((result, after), (0, pattern(1)), "round {round}, waiting");
            });
            // One kthread: the other thread waits now.
            thread::yield_now();
            let (woken, after) = futex_with(libc::FUTEX_WAKE, 1, &pattern(2));
            assert_eq!((woken, after), (1, pattern(2)), "round {round}, waking");
            waiter.join().unwrap();
            assert_eq!(futex_with(libc::FUTEX_WAKE, 1, &pattern(3)), (0, pattern(3)), "round {round}");
        }
    });
}

fn small_stacks() {
    const QUANTUM: Duration = Duration::from_micros(25);
    let builder = adopting(2).quantum(QUANTUM).stack_size(16 << 10);
    let run = builder.run(|| {
        let storm = tailwater::blocking(|| Storm::start(QUANTUM));
        let state = Arc::new((Mutex::new(0u32), Condvar::new(), AtomicU32::new(0)));
        let threads: Vec<_> = (0..8)
            .map(|me| {
                let state = Arc::clone(&state);
                thread::spawn(move || {
                    let (turn, changed, rounds) = &*state;
                    for _ in 0..300 {
                        let mut turn = turn.lock().unwrap();
                        while *turn % 8 != me {
                            turn = changed.wait_timeout(turn, Duration::from_millis(20)).unwrap().0;
                        }
                        *turn += 1;
                        changed.notify_all();
                        rounds.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        tailwater::blocking(move || drop(storm));
        state.2.load(Ordering::Relaxed)
    });
    assert_eq!(run.unwrap(), 2_400);
}
