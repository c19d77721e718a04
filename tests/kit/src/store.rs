//! A client of the key-value store, and the secret that its nodes share.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::wait::PATIENCE;

/// Writes a secret of these digits, repeated, into `folder`, as a file that only its owner reads;
/// returns its path.
///
/// # Panics
/// If it cannot be written.
#[track_caller]
pub fn secret(folder: &Path, digits: &str) -> PathBuf {
    let file = folder.join(digits);
    std::fs::write(&file, digits.repeat(16)).expect("a file");
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).expect("its owner");
    file
}

/// A connection to a store; answers are waited for no longer than [`PATIENCE`].
#[derive(Debug)]
pub struct Client(BufReader<TcpStream>);

impl Client {
    /// Connects to the port of a store's clients.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn connect(address: impl ToSocketAddrs) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self(BufReader::new(stream)))
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        match self.0.read_line(&mut line)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(line.trim_end().to_owned()),
        }
    }

    /// Stores a value; returns the answer.
    ///
    /// # Errors
    /// There is no answer.
    pub fn set(&mut self, key: &str, value: &str) -> io::Result<String> {
        write!(self.0.get_mut(), "set {key} 0 0 {}\r\n{value}\r\n", value.len())?;
        self.line()
    }

    /// Returns a number of the store's statistics.
    ///
    /// # Panics
    /// If there is none of this name, or no answer.
    #[track_caller]
    pub fn stat(&mut self, name: &str) -> u64 {
        self.0.get_mut().write_all(b"stats\r\n").expect("a connection");
        let mut value = None;
        loop {
            let line = self.line().expect("an answer");
            if line == "END" {
                return value.expect("a statistic of this name");
            }
            let words: Vec<&str> = line.split(' ').collect();
            if words[1] == name {
                value = Some(words[2].parse().expect("a number"));
            }
        }
    }

    /// Returns the value of a key; `None` if the store has none.
    ///
    /// # Panics
    /// If the answer is another, or there is none.
    #[track_caller]
    pub fn get(&mut self, key: &str) -> Option<String> {
        write!(self.0.get_mut(), "get {key}\r\n").expect("a connection");
        let head = self.line().expect("an answer");
        (head != "END").then(|| {
            let value = self.line().expect("a value");
            assert_eq!(self.line().expect("an end"), "END");
            value
        })
    }
}
