//! What tests of the program share: starting it, and its end.

#![allow(dead_code, reason = "no test uses all of it")]

use std::io::{BufRead, BufReader, Read};
use std::process::{ChildStdout, Command, Stdio};
use std::sync::mpsc::channel;

use rustix::process::Signal;
use tailwater_testkit::{PATIENCE, Program};

/// Beginning of the line that says where the program listens.
const LISTENING: &str = "listening on ";

/// The running program; killed when dropped.
pub struct Rocks {
    pub program: Program,
    /// Where it listens.
    pub address: String,
    /// Its output after that line.
    output: BufReader<ChildStdout>,
}

impl Rocks {
    /// Starts the program with these words and waits until it listens.
    pub fn start(with_words: impl FnOnce(&mut Command) -> &mut Command) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tailwater-rocks"));
        let mut program = Program::spawn_unread(with_words(&mut command).stdout(Stdio::piped()));
        let mut output = BufReader::new(program.process().stdout.take().expect("a pipe"));
        let (found, line) = channel();
        // Ends with the program, which is killed if it prints no address in time.
        std::thread::spawn(move || {
            let mut line = String::new();
            while output.read_line(&mut line).is_ok_and(|len| len > 0) {
                if let Some(address) = line.trim().strip_prefix(LISTENING) {
                    let _ = found.send((address.to_owned(), output));
                    return;
                }
                line.clear();
            }
        });
        let (address, output) = line.recv_timeout(PATIENCE).expect("it prints where it listens");
        Self { program, address, output }
    }

    /// Ends it with SIGTERM, as an operator does; returns its output since it listens.
    pub fn end(mut self) -> String {
        self.program.signal(Signal::TERM);
        assert!(self.program.wait().success());
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).expect("text");
        rest
    }

    /// Ends it with SIGTERM after its standard output was closed.
    pub fn end_unseen(self) {
        let Self { mut program, output, .. } = self;
        drop(output);
        program.signal(Signal::TERM);
        assert!(program.wait().success());
    }
}
