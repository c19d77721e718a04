//! `#[tailwater::test]`: bodies are user threads of one runtime, and results and panics are the
//! test's.

use std::process::Output;
use std::rc::Rc;
use tailwater::net::UdpSocket;
use tailwater::thread;

#[tailwater::test]
fn a_body_is_a_user_thread_with_the_name_of_the_test() {
    assert!(thread::is_user_thread());
    assert_eq!(thread::current().name(), Some("a_body_is_a_user_thread_with_the_name_of_the_test"));
    assert_eq!(thread::available_parallelism().unwrap().get(), 2);
    assert_eq!(thread::spawn(|| 6 * 7).join().unwrap(), 42);
}

#[tailwater::test]
fn a_message_arrives() -> std::io::Result<()> {
    let server = UdpSocket::bind("127.0.0.1:0")?;
    let client = UdpSocket::bind("127.0.0.1:0")?;
    client.send_to(b"hello", server.local_addr()?)?;
    let mut buf = [0; 16];
    assert_eq!(server.recv_from(&mut buf)?.0, 5);
    Ok(())
}

#[test]
fn the_test_that_the_guide_shows_is_the_one_above() {
    let guide = include_str!("../../../../docs/src/guide/service.md");
    let shown = guide.split("```rust\n").find(|block| block.starts_with("#[tailwater::test]"));
    let (shown, _) = shown.expect("the guide shows one").split_once("```").expect("the block ends");
    assert!(include_str!("test_attribute.rs").contains(shown), "{shown}");
}

#[tailwater::test]
#[should_panic(expected = "index out of bounds")]
fn a_panic_is_the_panic_of_the_test() {
    let empty: Vec<u8> = std::hint::black_box(Vec::new());
    std::hint::black_box(empty[0]);
}

#[tailwater::test]
fn a_result_need_not_be_send() -> Result<(), Rc<str>> {
    Ok(())
}

#[tailwater::test]
#[ignore = "fails; run by the next test"]
fn fails() -> Result<(), Rc<str>> {
    Err("refused".into())
}

fn rerun(test: &str, kthreads: &str) -> Output {
    let mut command = tailwater_testkit::rerun(module_path!(), test);
    tailwater_testkit::run(command.env("TAILWATER_KTHREADS", kthreads), b"")
}

#[test]
fn an_error_fails_the_test() {
    let output = rerun("fails", "2");
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("refused"), "{output:?}");
}

#[test]
fn a_runtime_that_cannot_start_fails_the_test_with_the_reason() {
    let output = rerun("a_result_need_not_be_send", "0");
    assert!(!output.status.success());
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(printed.contains("kthreads 0 is out of range"), "{output:?}");
    assert!(printed.contains("panicked at") && printed.contains("test_attribute.rs:"), "{output:?}");
}
