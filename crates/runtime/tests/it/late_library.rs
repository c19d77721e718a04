//! A library with thread-locals in the static block that is opened while the runtime runs is named.
//!
//! Needs a C compiler; prints why it is skipped otherwise.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tailwater_testkit::{Program, is_rerun, rerun, text};

const SOURCE: &str = "static __thread int value = 42;\nint *where(void) { return &value; }\n";
/// Names the folder of the libraries for the child.
const FOLDER: &str = "TAILWATER_TEST_LIBRARIES";

/// Makes a library whose thread-locals are of a model; returns why it could not.
fn make(folder: &Path, name: &str, model: &str) -> Result<(), String> {
    let source = folder.join(name).with_extension("c");
    std::fs::write(&source, SOURCE).map_err(|error| error.to_string())?;
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let output = Command::new(&compiler)
        .args(["-shared", "-fPIC", &format!("-ftls-model={model}"), "-o"])
        .args([&folder.join(name), &source])
        .output()
        .map_err(|error| format!("{compiler:?}: {error}"))?;
    if output.status.success() { Ok(()) } else { Err(text(&output.stderr)) }
}

fn open(path: &Path) {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: the library has no initialisers.
    assert!(!unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) }.is_null());
}

/// Opens one library before the runtime starts and two later; ends when the parent has read enough.
fn open_all() {
    let folder = PathBuf::from(std::env::var_os(FOLDER).unwrap());
    open(&folder.join("before.so"));
    let run =
        tailwater::RuntimeBuilder::new().kthreads(1).stall_timeout(Duration::from_secs(60)).run(move || {
            open(&folder.join("dynamic.so"));
            open(&folder.join("static.so"));
            tailwater::blocking(|| std::io::stdin().read_line(&mut String::new())).unwrap();
        });
    run.unwrap();
}

#[test]
fn a_library_with_static_thread_locals_that_is_opened_late_is_named_with_its_remedy() {
    let test = "a_library_with_static_thread_locals_that_is_opened_late_is_named_with_its_remedy";
    if is_rerun(test) {
        return open_all();
    }
    let folder = tempfile::tempdir().unwrap();
    for (name, model) in
        [("before.so", "initial-exec"), ("dynamic.so", "global-dynamic"), ("static.so", "initial-exec")]
    {
        if let Err(error) = make(folder.path(), name, model) {
            return eprintln!("skipped: the C compiler makes no library: {error}");
        }
    }
    let mut command = rerun(module_path!(), test);
    command.env(FOLDER, folder.path()).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = Program::spawn(&mut command);
    let input = child.take_input();
    let line = child.error_line_with("was opened after");
    drop(input);
    let output = child.finish();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let path = folder.path().join("static.so").display().to_string();
    assert!(line.contains(&path) && line.contains(&format!("LD_PRELOAD={path}")), "{line}");
    let all = text(&output.stderr);
    assert_eq!(all.matches("was opened after").count(), 1, "{all}");
}
