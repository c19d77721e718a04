//! Questions to a running IOKernel.
//!
//! Owns the conversation. An IOKernel that is stopped, in a debugger for instance, fails a question
//! after [`PATIENCE`].

use std::time::Duration;

use anyhow::Context;
use rustix::fd::OwnedFd;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use serde_json::Value;
use tailwater_batch::notice::{self, Notice};
use tailwater_shm::control::{ClientMessage, ControlError, ServerMessage, dial_within, receive, send};

use crate::statistics::lent_cores;

/// Longest time for which an answer is awaited.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Returns the counters of the IOKernel at `socket`, and the programs registered there.
///
/// # Errors
/// If nothing listens at the socket, or the answer has another form.
pub fn statistics(socket: &str) -> anyhow::Result<Value> {
    statistics_within(socket, PATIENCE)
}

fn statistics_within(socket: &str, patience: Duration) -> anyhow::Result<Value> {
    let connection = connect(socket, patience)?;
    send(&connection, &ClientMessage::Stats, &[])?;
    match answer(&connection)?.0 {
        ServerMessage::Stats(statistics) => Ok(statistics),
        other => Err(of_another_kind(&other)),
    }
}

/// Returns the same, and the batch jobs that use the cores of that IOKernel: what `tailwater stats
/// --json` prints. The jobs are awaited for a tenth of `patience`.
///
/// # Errors
/// As [`statistics`], after `patience`.
pub fn statistics_and_jobs(socket: &str, patience: Duration) -> anyhow::Result<Value> {
    let mut statistics = statistics_within(socket, patience)?;
    let managed: Vec<usize> = lent_cores(&statistics).unwrap_or_default();
    if let Some(all) = statistics.as_object_mut() {
        let mut jobs = notice::all(patience / 10);
        jobs.retain(|job| is_same_socket(&job.iokernel, socket));
        jobs.iter_mut().for_each(|job| keep_cores(job, &managed));
        all.insert("batch_jobs".to_owned(), serde_json::to_value(jobs)?);
    }
    Ok(statistics)
}

/// Leaves out what a job says of cores that the IOKernel does not lend. Any user's process can call
/// itself a job, and each core of which it speaks becomes a metric.
fn keep_cores(job: &mut Notice, managed: &[usize]) {
    job.cores.retain(|core| managed.contains(core));
    job.cores.sort_unstable();
    job.cores.dedup();
    job.usage.by_core_ns.retain(|core, _| managed.contains(core));
    job.usage.share.retain(|core, _| managed.contains(core));
}

/// Returns whether two addresses name one socket: what follows the comma says whose it has to be.
fn is_same_socket(one: &str, other: &str) -> bool {
    one.split(',').next() == other.split(',').next()
}

/// Connects to the IOKernel at `address` within `patience`, and limits the wait for each answer to
/// the same time.
///
/// # Errors
/// If nothing listens there, or as many connections as Linux keeps wait to be accepted.
pub fn connect(address: &str, patience: Duration) -> anyhow::Result<OwnedFd> {
    let socket = dial_within(address, patience).map_err(|error| match crate::socket::hint(address) {
        Some(hint) => anyhow::anyhow!("{error}; {hint}"),
        None => error.into(),
    })?;
    set_socket_timeout(&socket, Timeout::Recv, Some(patience))
        .context("cannot limit the wait for an answer")?;
    Ok(socket)
}

/// Returns the answer to what was sent.
///
/// # Errors
/// If none comes in time.
pub fn answer(socket: &OwnedFd) -> anyhow::Result<(ServerMessage, Vec<OwnedFd>)> {
    match receive(socket) {
        Err(ControlError::WouldBlock) => anyhow::bail!("the IOKernel did not answer in time: is it stopped?"),
        result => result.context("the IOKernel did not answer"),
    }
}

/// Returns the error that an answer is another one than the question has.
#[must_use]
pub fn of_another_kind(answer: &ServerMessage) -> anyhow::Error {
    match answer {
        ServerMessage::Refused { why } => anyhow::anyhow!("the IOKernel refused that: {why}"),
        other => anyhow::anyhow!("the IOKernel gave an answer of another kind: {other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use tailwater_shm::control::serve;
    use tailwater_testkit::until;

    use super::*;

    #[test]
    fn an_address_with_a_user_names_the_same_socket() {
        assert!(is_same_socket("@tailwater", "@tailwater,user=1000"));
        assert!(!is_same_socket("@tailwater", "@tailwater2"));
    }

    #[test]
    fn a_job_speaks_of_lent_cores_only() {
        let mut job: Notice = serde_json::from_value(serde_json::json!({
            "name": "xz", "pid": 9, "iokernel": "@x", "cores": [7, 1, 1, 2], "group": null, "usage": {
                "processes": 1, "threads": 1, "core_ns": 5,
                "by_core_ns": { "1": 5, "70000": 1 }, "share": { "2": 0.5, "70000": 1.0 } } }))
        .unwrap();
        keep_cores(&mut job, &[1, 2]);
        assert_eq!(job.cores, [1, 2]);
        assert_eq!(job.usage.by_core_ns.into_iter().collect::<Vec<_>>(), [(1, 5)]);
        assert_eq!(job.usage.share.into_iter().collect::<Vec<_>>(), [(2, 0.5)]);
    }

    #[test]
    fn an_iokernel_whose_queue_is_full_is_not_awaited_for_ever() {
        let address = format!("@tailwater-full-{}", std::process::id());
        let listener = serve(&address, |_| {}).unwrap();
        // Room for one connection that is not accepted.
        rustix::net::listen(&listener, 0).unwrap();
        let _waiting = connect(&address, PATIENCE).unwrap();
        // Again if the machine is so busy that this takes long.
        until("a question ends before PATIENCE", || {
            let began = std::time::Instant::now();
            let error = statistics_within(&address, Duration::from_millis(20)).unwrap_err();
            assert!(format!("{error:#}").contains("connect"), "{error:#}");
            began.elapsed() < PATIENCE
        });
    }

    #[test]
    fn an_iokernel_that_does_not_answer_is_not_awaited_for_ever() {
        let address = format!("@tailwater-silent-{}", std::process::id());
        // Accepts no connection: the question waits in its backlog.
        let _listener = serve(&address, |_| {}).unwrap();
        let socket = connect(&address, Duration::from_millis(20)).unwrap();
        send(&socket, &ClientMessage::Stats, &[]).unwrap();
        let error = answer(&socket).unwrap_err().to_string();
        assert!(error.contains("did not answer in time"), "{error}");
    }
}
