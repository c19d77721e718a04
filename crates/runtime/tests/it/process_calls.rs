//! Calls of the C library that look at its record of the calling thread, or of all threads, from
//! user threads: forks, changes of user and group, robust mutexes, a thread's attributes.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tailwater::thread;
use tailwater_testkit::own_process;

/// Runs `test` as a user thread beside others.
fn beside_others(test: impl FnOnce() + Send + 'static) {
    static DONE: AtomicBool = AtomicBool::new(false);
    tailwater::RuntimeBuilder::new()
        .kthreads(2)
        .run(move || {
            let yields = || {
                while !DONE.load(Relaxed) {
                    thread::yield_now();
                }
            };
            let others: Vec<_> = (0..4).map(|_| thread::spawn(yields)).collect();
            test();
            DONE.store(true, Relaxed);
            others.into_iter().for_each(|other| other.join().unwrap());
        })
        .unwrap();
}

#[test]
fn a_user_thread_changes_the_groups_of_all_threads() {
    own_process(|| {
        beside_others(|| {
            let change = || {
                // SAFETY: sets the ids that the process has.
                unsafe { (libc::setgid(libc::getgid()), libc::setuid(libc::getuid())) }
            };
            for _ in 0..100 {
                assert_eq!(change(), (0, 0));
                thread::yield_now();
            }
            // From an ordinary thread, while user threads run.
            assert_eq!(tailwater::blocking(change), (0, 0));
            assert_eq!(thread::spawn(|| 3).join().unwrap(), 3);
        });
    });
}

#[test]
fn a_user_thread_forks_and_its_child_starts_a_program() {
    own_process(|| {
        beside_others(|| {
            // A changed PATH makes the standard library fork instead of calling posix_spawn(3).
            let mut shell = Command::new("sh");
            shell.args(["-c", "exit 4"]).env("PATH", "/bin:/usr/bin");
            assert_eq!(shell.status().unwrap().code(), Some(4));
            // SAFETY: the closure makes a system call alone.
            unsafe {
                shell.pre_exec(|| {
                    if libc::umask(0o77) > 0o777 { Err(std::io::Error::other("")) } else { Ok(()) }
                })
            };
            assert_eq!(shell.output().unwrap().status.code(), Some(4));
            for _ in 0..20 {
                // SAFETY: the child ends at once.
                let status = unsafe {
                    let child = libc::fork();
                    if child == 0 {
                        libc::_exit(7);
                    }
                    let mut status = 0;
                    assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
                    status
                };
                assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7, "{status:#x}");
            }
        });
    });
}

#[test]
fn robust_mutexes_are_locked_and_unlocked_by_user_threads() {
    own_process(|| {
        beside_others(|| {
            // SAFETY: the objects are initialised before use, stay in place, and are used by this
            // thread alone.
            unsafe {
                let mut attributes: libc::pthread_mutexattr_t = std::mem::zeroed();
                libc::pthread_mutexattr_init(&raw mut attributes);
                libc::pthread_mutexattr_setrobust(&raw mut attributes, libc::PTHREAD_MUTEX_ROBUST);
                let mut mutexes: Box<[libc::pthread_mutex_t; 3]> = Box::new(std::mem::zeroed());
                for mutex in &mut *mutexes {
                    assert_eq!(libc::pthread_mutex_init(mutex, &raw const attributes), 0);
                    assert_eq!(libc::pthread_mutex_lock(mutex), 0);
                }
                assert_eq!(libc::pthread_mutex_trylock(&raw mut mutexes[1]), libc::EBUSY);
                thread::yield_now();
                for at in [1, 0, 2] {
                    assert_eq!(libc::pthread_mutex_unlock(&raw mut mutexes[at]), 0);
                    assert_eq!(libc::pthread_mutex_trylock(&raw mut mutexes[at]), 0);
                    assert_eq!(libc::pthread_mutex_unlock(&raw mut mutexes[at]), 0);
                }
            }
        });
    });
}

/// Asks for the stack, the priority and the cores of the calling thread; returns the three results,
/// and whether the stack is the one that it runs on.
fn attributes() -> ([i32; 3], bool) {
    // SAFETY: the objects are initialised before use, and have the sizes that are passed.
    unsafe {
        let me = libc::pthread_self();
        let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
        let of_stack = libc::pthread_getattr_np(me, &raw mut attributes);
        let (mut low, mut size) = (std::ptr::null_mut(), 0);
        if of_stack == 0 {
            assert_eq!(libc::pthread_attr_getstack(&raw const attributes, &raw mut low, &raw mut size), 0);
            libc::pthread_attr_destroy(&raw mut attributes);
        }
        let here = &raw const size as usize;
        let (mut policy, mut parameters): (i32, libc::sched_param) = (0, std::mem::zeroed());
        let of_policy = libc::pthread_getschedparam(me, &raw mut policy, &raw mut parameters);
        let mut cores: libc::cpu_set_t = std::mem::zeroed();
        let of_cores = libc::pthread_getaffinity_np(me, size_of_val(&cores), &raw mut cores);
        ([of_stack, of_policy, of_cores], (low as usize..low as usize + size).contains(&here))
    }
}

#[test]
fn attributes_of_a_user_thread_are_refused_and_those_of_an_ordinary_one_are_its_own() {
    own_process(|| {
        beside_others(|| {
            for _ in 0..100 {
                let (results, is_its_stack) = attributes();
                assert!(results.iter().all(|&result| result != 0) && !is_its_stack, "{results:?}");
                thread::yield_now();
            }
            assert_eq!(tailwater::blocking(attributes), ([0; 3], true));
        });
    });
}
