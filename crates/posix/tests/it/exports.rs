//! What the library exports.

use super::library;
use std::collections::BTreeSet;
use std::process::Command;

/// Returns the names that the library defines for others; `None` without `nm`.
pub fn exported() -> Option<BTreeSet<String>> {
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(library()).output();
    let Ok(output) = output.as_ref().map(|output| String::from_utf8_lossy(&output.stdout)) else {
        println!("skipped: there is no nm (binutils)");
        return None;
    };
    Some(output.lines().filter_map(|line| Some(line.split_whitespace().nth(2)?.to_owned())).collect())
}

/// A heap of the runtime under these names would get blocks of the program's, and the reverse.
#[test]
fn the_runtime_s_own_functions_stay_inside() {
    let Some(names) = exported() else { return };
    assert!(names.contains("epoll_wait"), "{names:?}");
    for name in ["malloc", "free", "calloc", "realloc", "__cxa_thread_atexit_impl", "dl_iterate_phdr"] {
        assert!(!names.contains(name), "{name} is exported");
    }
    let rust: Vec<_> =
        names.iter().filter(|name| name.starts_with("_R") || name.starts_with("_ZN")).collect();
    assert!(rust.is_empty(), "{rust:?}");
}
