//! The recipe of the guide for C: a compiler that puts a call at each edge makes poll points.
//!
//! Needs a C compiler that knows `-fsanitize-coverage=trace-pc`; prints why it is skipped
//! otherwise.

use std::ffi::{CStr, CString, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tailwater_testkit::own_process;

/// The hook, as in the guide: in a file that is built without the option.
const HOOK: &str = "
static void (*poll_point)(void);

void set_poll_point(void (*function)(void)) { poll_point = function; }

void __sanitizer_cov_trace_pc(void) {
    static volatile unsigned edges; // of all threads: a lost count delays a poll point
    if (++edges % 64 == 0 && poll_point) poll_point();
}
";

/// The program: a loop of a thousand turns in a loop.
const PROGRAM: &str = "
unsigned long work(unsigned long turns) {
    unsigned long sum = 0;
    for (unsigned long i = 0; i < turns; i++)
        for (unsigned long j = 0; j < 1000; j++) sum = sum * 31 + (i ^ j);
    return sum;
}
";

static POLLS: AtomicU64 = AtomicU64::new(0);

extern "C" fn poll() {
    POLLS.fetch_add(1, Relaxed);
    tailwater::poll();
}

/// Compiles a file; returns why it could not.
fn compile(directory: &Path, name: &str, source: &str, options: &[&str]) -> Result<(), String> {
    let file = directory.join(name).with_extension("c");
    std::fs::write(&file, source).unwrap();
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let output = Command::new(&compiler)
        .args(["-O2", "-fPIC", "-c"])
        .args(options)
        .arg(&file)
        .arg("-o")
        .arg(directory.join(name).with_extension("o"))
        .output()
        .map_err(|error| format!("{compiler:?}: {error}"))?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

fn link(directory: &Path) -> Result<(), String> {
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let objects = ["hook.o", "program.o"].map(|name| directory.join(name));
    let output = Command::new(compiler)
        .arg("-shared")
        .args(objects)
        .arg("-o")
        .arg(directory.join("program.so"))
        .output()
        .map_err(|error| error.to_string())?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

/// Returns a function of a loaded library.
fn symbol(library: *mut c_void, name: &str) -> *mut c_void {
    let name = CString::new(name).unwrap();
    // SAFETY: the library is loaded, and the name ends with a zero.
    let address = unsafe { libc::dlsym(library, name.as_ptr()) };
    assert!(!address.is_null(), "{name:?} is missing");
    address
}

#[test]
fn edges_of_c_code_are_poll_points() {
    own_process(|| {
        let directory = tempfile::tempdir().unwrap();
        // Some compilers mark edges after they have unrolled loops.
        let traced = ["-fsanitize-coverage=trace-pc", "-fno-unroll-loops"];
        let built = compile(directory.path(), "hook", HOOK, &[])
            .and_then(|()| compile(directory.path(), "program", PROGRAM, &traced))
            .and_then(|()| link(directory.path()));
        if let Err(reason) = built {
            return println!("skipped: no C compiler with -fsanitize-coverage=trace-pc: {reason}");
        }
        let path = CString::new(directory.path().join("program.so").as_os_str().as_bytes()).unwrap();
        // SAFETY: the library has no constructors; it stays loaded.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        if library.is_null() {
            // SAFETY: after a failure it is a text, until the next call of this family.
            let reason = unsafe { CStr::from_ptr(libc::dlerror()) };
            return println!(
                "skipped: what the C compiler makes cannot be loaded: {}",
                reason.to_string_lossy()
            );
        }
        // SAFETY: the types are those of the C code above.
        let (set_poll_point, work) = unsafe {
            (
                core::mem::transmute::<*mut c_void, extern "C" fn(extern "C" fn())>(symbol(
                    library,
                    "set_poll_point",
                )),
                core::mem::transmute::<*mut c_void, extern "C" fn(u64) -> u64>(symbol(library, "work")),
            )
        };
        set_poll_point(poll);
        tailwater::RuntimeBuilder::new().kthreads(1).run(move || assert_ne!(work(100), 0)).unwrap();
        // Each of the 100,000 turns has an edge at least.
        assert!(POLLS.load(Relaxed) >= 100_000 / 64, "{} poll points", POLLS.load(Relaxed));
    });
}
