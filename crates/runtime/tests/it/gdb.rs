//! The gdb script, on this program itself. Passes with a message if gdb is not installed or may not
//! trace.

use std::process::{Command, Stdio};

use tailwater::thread;
use tailwater_testkit::{is_rerun, rerun, run, text};

const TEST: &str = "gdb_lists_user_threads_and_walks_the_stack_of_a_suspended_one";

#[inline(never)]
fn parks_for_gdb() {
    thread::park();
    // Not a tail call, which would leave no frame.
    std::hint::black_box(());
}

/// One thread parked, the other stopped for the debugger.
fn program() {
    let run = tailwater::RuntimeBuilder::new().kthreads(1).run(|| {
        let parked = thread::spawn(parks_for_gdb);
        thread::yield_now();
        println!("parked: {:?}", parked.thread().id());
        // SAFETY: stops this process for its debugger.
        unsafe { libc::raise(libc::SIGTRAP) };
    });
    run.unwrap();
}

#[test]
fn gdb_lists_user_threads_and_walks_the_stack_of_a_suspended_one() {
    if is_rerun(TEST) {
        return program();
    }
    let has_gdb =
        Command::new("gdb").arg("--version").stdout(Stdio::null()).status().is_ok_and(|s| s.success());
    if !has_gdb {
        return eprintln!("no gdb here: nothing tested");
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/gdb/tailwater.py");
    // Ids from 1: the first thread, then a kthread's block of ids, of which the parked thread has
    // the first.
    let commands =
        ["run", "tailwater threads", "tailwater bt 2", "tailwater bt 1", "tailwater bt 999", "kill"];
    let own = rerun(module_path!(), TEST);
    let mut gdb = Command::new("gdb");
    gdb.args(["-nx", "-batch", "-ex", "set debuginfod enabled off", "-x", script])
        .args(commands.iter().flat_map(|command| ["-ex", command]))
        .arg("--args")
        .arg(own.get_program())
        .args(own.get_args())
        .envs(own.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = run(&mut gdb, b"");
    let text = text(&output.stdout) + &text(&output.stderr);
    // Where it may not turn off the randomisation of addresses, gdb says so and goes on.
    let refused = ["not permitted", "not implemented"].iter().any(|why| text.contains(why));
    if refused && !text.contains("SIGTRAP") {
        return eprintln!("gdb may not trace here: nothing tested");
    }
    assert!(text.contains("SIGTRAP"), "{text}");
    let line =
        |id: &str| text.lines().find(|l| l.trim_start().starts_with(&format!("{id}  record"))).unwrap_or("");
    assert!(line("1").ends_with("running"), "{text}");
    assert!(line("2").ends_with("parked"), "{text}");
    assert!(text.contains("parks_for_gdb") && text.contains("uthread_main"), "{text}");
    assert!(text.contains("there is no user thread 999"), "{text}");
    assert!(text.contains("user thread 1 is running"), "{text}");
}
