//! The command `tailwater-spin`, as far as it refuses.

use std::process::Command;

#[test]
fn an_estimate_of_cores_is_refused_where_none_can_be_requested() {
    for (words, advice) in [
        (&["--estimate-cores"][..], "run the program with TAILWATER_IOKERNEL"),
        (&["--estimate-cores", "--linux"], "--linux"),
        (&["--estimate-cores", "--background"], "--background"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tailwater-spin"));
        command.args(["--speed", "1000", "--listen", "0.0.0.0:0"]).args(words);
        let output = command.env("TAILWATER_KTHREADS", "1").output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(advice), "{words:?}: {said}");
    }
}
