//! The remedy for a future that needs Tokio's runtime and panics without it.
//!
//! Tokio's message says that its runtime is absent, not what to do about it here. [`explain`] adds
//! that to the payload, at the end of the task or of [`block_on`](super::block_on), and prints it
//! below what the panic hook has printed.

use std::any::Any;

/// What the messages of all such panics contain; Tokio 1 promises to stay at 1.x.
const TOKIOS_WORDS: &str = "Tokio 1.x runtime";

const REMEDY: &str = "on a user thread, use what tailwater::future has in place of tokio's timers, \
sockets and tasks: sleep, timeout, spawn, net::TcpStream; or enter a runtime of Tokio's around the \
call (tokio::runtime::Handle::enter), whose threads then serve it";

/// Returns the payload of a panic, with the remedy if it is one of Tokio's for want of its runtime.
#[cold]
pub(super) fn explain(payload: Box<dyn Any + Send>) -> Box<dyn Any + Send> {
    let message = match payload.downcast_ref::<String>() {
        Some(message) => message.as_str(),
        None => payload.downcast_ref::<&str>().copied().unwrap_or_default(),
    };
    // An inner `block_on` has added it already.
    if !message.contains(TOKIOS_WORDS) || message.contains(REMEDY) {
        return payload;
    }
    eprintln!("{REMEDY}");
    Box::new(format!("{message}: {REMEDY}"))
}

#[cfg(test)]
mod tests {
    use crate::future::block_on;
    use std::panic::catch_unwind;

    fn message_of(panics: impl FnOnce() + std::panic::UnwindSafe) -> String {
        let payload = catch_unwind(|| block_on(async { panics() })).unwrap_err();
        match payload.downcast::<String>() {
            Ok(message) => *message,
            Err(payload) => (*payload.downcast::<&str>().unwrap()).to_owned(),
        }
    }

    #[test]
    fn a_panic_for_want_of_tokios_runtime_names_the_remedy_once_and_others_are_left_alone() {
        let tokios =
            || panic!("there is no reactor running, must be called from the context of a Tokio 1.x runtime");
        let message = message_of(tokios);
        assert!(message.starts_with("there is no reactor running"), "{message}");
        assert!(message.ends_with(super::REMEDY), "{message}");
        assert_eq!(message_of(|| block_on(async { tokios() })), message);
        assert_eq!(message_of(|| panic!("of its own")), "of its own");
    }
}
