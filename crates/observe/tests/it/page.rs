//! The script of the web page, run by Node.js.

use std::path::Path;
use std::process::Command;

use tailwater_testkit::{is_installed, run, text};

#[test]
fn the_script_mixes_no_times_and_calls_no_defect_an_absent_server() {
    if !is_installed("node", "nodejs") {
        return;
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = ["tests/it/page.js", "src/page/page.js"].map(|file| folder.join(file));
    let output = run(Command::new("node").args(files), b"");
    assert!(output.status.success(), "{}", text(&output.stderr));
}
