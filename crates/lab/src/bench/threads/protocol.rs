//! The line protocol between `bench threads` and the processes of the systems it measures.
//!
//! The parent writes `OPERATION N`. The child performs the operation N times and answers one line:
//! nanoseconds per operation (for idle threads also KiB per thread), `none` if the system cannot do
//! it, or `error: ...`. Between orders the child sleeps in the read of its standard input, and ends
//! when that is closed. The parent sleeps meanwhile, so one child at a time has the cores.

use std::io::{Write, stdout};

use anyhow::{Context, Result, bail};
use tailwater_testbed::child::ChildProcess;
use tailwater_testbed::interrupt::Interrupt;

use super::operation::Operation;

/// The answer to an order.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Answer {
    /// Nanoseconds per operation.
    pub ns: f64,
    /// KiB per thread, for idle threads.
    pub kib: Option<f64>,
}

impl Answer {
    /// Returns an answer of nanoseconds only.
    pub fn ns(ns: f64) -> Self {
        Self { ns, kib: None }
    }
}

/// Returns the line of `answer`.
fn encode_answer(answer: Option<Answer>) -> String {
    match answer {
        None => "none".to_owned(),
        Some(Answer { ns, kib: None }) => format!("{ns:.3}"),
        Some(Answer { ns, kib: Some(kib) }) => format!("{ns:.3} {kib:.3}"),
    }
}

/// Reads the line of an answer; `None` if the system cannot perform the operation.
///
/// # Errors
/// The child's error, or a line outside the protocol.
fn decode_answer(line: &str) -> Result<Option<Answer>> {
    let line = line.trim();
    if line == "none" {
        return Ok(None);
    }
    let numbers: Option<Vec<f64>> =
        line.split(' ').map(|word| word.parse().ok().filter(|n: &f64| n.is_finite())).collect();
    match numbers.as_deref() {
        Some(&[ns]) => Ok(Some(Answer::ns(ns))),
        Some(&[ns, kib]) => Ok(Some(Answer { ns, kib: Some(kib) })),
        _ => bail!("it answered {line:?}"),
    }
}

/// Reads the line of an order; `None` if it is none.
fn decode_order(line: &str) -> Option<(Operation, u64)> {
    let (op, n) = line.trim().split_once(' ')?;
    Some((op.parse().ok()?, n.parse().ok().filter(|&n| n > 0)?))
}

/// Makes the process of a system perform `op` `n` times; `None` if the system cannot.
///
/// # Errors
/// If the process fails or ends, or on a signal.
pub fn order(
    process: &mut ChildProcess,
    op: Operation,
    n: u64,
    interrupt: &Interrupt,
) -> Result<Option<Answer>> {
    process.tell(&format!("{} {n}", op.name()))?;
    decode_answer(&process.read_line(interrupt)?).with_context(|| format!("{} failed", op.name()))
}

/// Serves orders until standard input ends. `read` reads a line without holding up the system's
/// threads, `perform` performs an operation.
///
/// # Errors
/// If standard input or output fails.
pub fn serve(
    mut read: impl FnMut() -> std::io::Result<String>,
    mut perform: impl FnMut(Operation, u64) -> Option<Answer>,
) -> Result<()> {
    loop {
        let line = read().context("cannot read orders")?;
        if line.is_empty() {
            return Ok(());
        }
        let answer = match decode_order(&line) {
            Some((op, n)) => encode_answer(perform(op, n)),
            None => format!("error: {:?} is not an order", line.trim()),
        };
        writeln!(stdout(), "{answer}")?;
    }
}

/// Reads a line from standard input, sleeping in the kernel; empty at its end.
pub fn read_order() -> std::io::Result<String> {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_survive_the_line() {
        for answer in [None, Some(Answer::ns(12.5)), Some(Answer { ns: 480.25, kib: Some(9.125) })] {
            assert_eq!(decode_answer(&encode_answer(answer)).unwrap(), answer);
        }
    }

    #[test]
    fn a_childs_error_is_reported() {
        for line in ["error: no memory", "", "1 2 3", "NaN", "inf"] {
            assert!(decode_answer(line).is_err(), "{line:?} was taken for an answer");
        }
    }

    #[test]
    fn orders_are_a_known_operation_and_a_positive_number() {
        assert_eq!(decode_order("condvar 100\n"), Some((Operation::Condvar, 100)));
        for line in ["condvar", "condvar x", "condvar 0", "fork 3", ""] {
            assert_eq!(decode_order(line), None, "{line:?}");
        }
    }

    #[test]
    fn serving_ends_with_the_input() {
        let mut lines = ["mutex 3\n", ""].into_iter();
        let mut done = Vec::new();
        serve(
            || Ok(lines.next().expect("no read after the end").to_owned()),
            |op, n| {
                done.push((op, n));
                Some(Answer::ns(1.0))
            },
        )
        .unwrap();
        assert_eq!(done, [(Operation::Mutex, 3)]);
    }
}
