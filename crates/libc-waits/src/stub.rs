//! The code that a site jumps to, and the jump.
//!
//! A stub runs the moved instructions and looks at the number of the system call. If it is no futex
//! call, the stub jumps to the `syscall`, which is where it was. Otherwise it leaves the red zone
//! (System V ABI, 3.2.2) and jumps to the entry with the address behind the `syscall` on the stack,
//! as if that had been a call: so a debugger and an unwinder see the function that the site lies
//! in.
//!
//! `rcx`, `r11` and the flags are free, since a system call changes them; Linux restores the flags,
//! but no inline assembly of the libraries counts on that: it declares them changed ("cc").

use crate::sites::{FUTEX, JUMP, SYSCALL, Site};
use iced_x86::Encoder;

/// Maximum length of a stub: moved instructions of up to 19 bytes, and 46 of its own.
pub const MAX_STUB: usize = 80;

/// A site is too far from its stub, or an instruction cannot be moved so far.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the instructions before the system call at {syscall:#x} cannot be moved: {why}")]
pub struct Immovable {
    syscall: u64,
    why: String,
}

/// Assembles the stub of `site` for the address `at`, which continues at `entry`.
///
/// # Errors
/// If it is too far from the site.
pub fn stub(site: &Site, at: u64, entry: u64) -> Result<Vec<u8>, Immovable> {
    let fails = |why: String| Immovable { syscall: site.syscall, why };
    let mut encoder = Encoder::new(64);
    let mut next = at;
    for instruction in &site.moved {
        next += encoder.encode(instruction, next).map_err(|error| fails(error.to_string()))? as u64;
    }
    let mut code = encoder.take_buffer();
    code.push(0x3d); // cmp eax, FUTEX
    code.extend(FUTEX.to_le_bytes());
    code.extend([0x0f, 0x85]); // jne syscall
    let behind = at + code.len() as u64 + 4;
    code.extend(displacement(behind, site.syscall).ok_or_else(|| fails("out of reach".into()))?);
    code.extend([0x48, 0x8d, 0x64, 0x24, 0x80]); // lea rsp, [rsp - 128]
    code.extend([0xff, 0x35, 14, 0, 0, 0]); // push [behind the syscall]
    code.extend([0xff, 0x25, 0, 0, 0, 0]); // jmp [entry]
    code.extend(entry.to_le_bytes());
    code.extend((site.syscall + SYSCALL as u64).to_le_bytes());
    debug_assert!(code.len() <= MAX_STUB);
    Ok(code)
}

/// Returns the bytes from the beginning of `site` to its `syscall`: a jump to `stub`, and padding.
///
/// # Errors
/// If the stub is too far away.
pub fn jump(site: &Site, stub: u64) -> Result<Vec<u8>, Immovable> {
    let start = site.start();
    let distance = displacement(start + JUMP as u64, stub)
        .ok_or_else(|| Immovable { syscall: site.syscall, why: "out of reach".into() })?;
    let mut code = vec![0xe9];
    code.extend(distance);
    code.resize((site.syscall - start) as usize, 0x90);
    Ok(code)
}

fn displacement(from: u64, to: u64) -> Option<[u8; 4]> {
    i32::try_from(to.wrapping_sub(from).cast_signed()).ok().map(i32::to_le_bytes)
}
