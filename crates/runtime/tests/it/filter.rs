//! Filters of system calls (seccomp(2)), for tests of what happens where a call is refused. One
//! stays until its process ends, so it is set in a process of its own.

fn instruction(code: u32, value: u32, otherwise: u8) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: otherwise, k: value }
}

/// Has the kernel refuse the system call of this number (`EPERM`) to all threads of the process;
/// returns false if no filter can be set here.
pub fn refuse(call: libc::c_long) -> bool {
    let mut filter = [
        // The number is the first word of `seccomp_data`.
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, call as u32, 1),
        instruction(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32, 0),
        instruction(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: plain calls; the kernel copies the program, which is alive.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                libc::SECCOMP_FILTER_FLAG_TSYNC,
                &raw const program,
            ) == 0
    }
}
