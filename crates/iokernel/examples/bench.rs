//! Runs both measurements of the IOKernel and prints their reports as JSON: `cargo run --release --example bench`.

use std::process::{Command, ExitCode};
use tailwater_iokernel::bench::{HandoffOptions, SwitchOptions, handoff, switch};
use tailwater_iokernel::testing::child::run_if_asked;

fn main() -> ExitCode {
    if let Some(code) = run_if_asked() {
        return code;
    }
    let which = std::env::args().nth(1).unwrap_or_default();
    let this = std::env::current_exe().expect("the path of this program");
    if which != "switch" {
        match handoff(HandoffOptions::default(), &|| Command::new(&this)) {
            Ok(report) => println!("{}", serde_json::to_string_pretty(&report).expect("plain data")),
            Err(error) => eprintln!("{error}"),
        }
    }
    if which != "handoff" {
        match switch(SwitchOptions::default()) {
            Ok(report) => println!("{}", serde_json::to_string_pretty(&report).expect("plain data")),
            Err(error) => eprintln!("{error}"),
        }
    }
    ExitCode::SUCCESS
}
