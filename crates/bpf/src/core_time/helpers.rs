//! Functions of the kernel that programs call, by number (linux/bpf.h, `__BPF_FUNC_MAPPER`), and
//! the name that one of them writes.

/// `bpf_map_lookup_elem(map, key)`.
pub(crate) const LOOKUP: u32 = 1;
/// `bpf_map_update_elem(map, key, value, flags)`.
pub(crate) const UPDATE: u32 = 2;
/// `bpf_ktime_get_ns()`: `CLOCK_MONOTONIC`.
pub(crate) const NANOSECONDS: u32 = 5;
/// `bpf_get_smp_processor_id()`.
pub(crate) const CORE: u32 = 8;
/// `bpf_get_current_pid_tgid()`: the thread, and its process in the high half.
pub(crate) const THREAD: u32 = 14;
/// `bpf_get_current_comm(buffer, size)`.
pub(crate) const COMMAND: u32 = 16;

/// Length of a thread's name with the zero behind it (`TASK_COMM_LEN`, linux/sched.h).
pub(crate) const COMMAND_LEN: usize = 16;

/// Returns the name of a thread as [`COMMAND`] has written it: up to the first zero.
pub(crate) fn command(words: &[u64]) -> String {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let len = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..len]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_ends_at_its_zero_and_is_text() {
        let words = |text: &[u8; 8]| u64::from_ne_bytes(*text);
        assert_eq!(command(&[words(b"xz\0\xff\xff\xff\xff\xff"), 7]), "xz");
        assert_eq!(command(&[words(b"\xffabcdefg"), words(b"hijklmno")]), "\u{fffd}abcdefghijklmno");
    }
}
