//! Commands allocate nothing once a connection's buffers have grown.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use tailwater_kv::protocol::{Connection, Step};
use tailwater_kv::service::{Service, Settings};
use tailwater_kv::store::{Config, Now, Store};

thread_local! {
    /// Of this thread: the test harness allocates on its own at any time.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: all is the system's; counting has no effect on memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // Constant and without a destructor, so access neither allocates nor fails.
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOC: Counting = Counting;

fn send(connection: &mut Connection, bytes: &[u8]) -> usize {
    connection.space()[..bytes.len()].copy_from_slice(bytes);
    connection.received(bytes.len());
    assert_eq!(connection.process(Now { seconds: 100, start_unix: 0 }), Step::Read);
    let len = connection.output().len();
    connection.sent();
    len
}

#[test]
fn commands_allocate_nothing() {
    let config = Config { memory: 1 << 20, max_item: 64 << 10, evict: true, secret: [1, 2] };
    let settings = Settings { tcp_port: 0, ..Settings::default() };
    let service = Service::new(Store::new(config).unwrap(), settings);
    let value = "v".repeat(1000);
    let commands = [
        format!("set a 0 0 1000\r\n{value}\r\n"),
        "get a b a\r\n".to_owned(),
        "gets a\r\ngat 100 a\r\ntouch a 0\r\n".to_owned(),
        "mg a v t f k O1\r\nms n 1\r\n1\r\nma n v\r\nmd n\r\nmn\r\n".to_owned(),
        "append a 0 0 3\r\nend\r\nincr a 1\r\ndelete a\r\nversion\r\n".to_owned(),
    ];
    let mut connection = Connection::new(Arc::clone(&service));
    let round = |connection: &mut Connection| {
        for command in &commands {
            assert!(send(connection, command.as_bytes()) > 0);
        }
    };
    // Buffers grow.
    round(&mut connection);
    let before = ALLOCATIONS.get();
    (0..1000).for_each(|_| round(&mut connection));
    assert_eq!(ALLOCATIONS.get() - before, 0, "allocations in 1000 rounds");
}
