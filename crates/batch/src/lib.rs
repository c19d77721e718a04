//! Any Linux program as a batch job beside Tailwater's services.
//!
//! Such a program is not lent cores: it has no poll points at which it could give one back. It runs
//! on the lent cores whenever no kthread does, in the lowest rank that Linux has, and a kthread
//! that wakes preempts it at once.
//!
//! | module | owns |
//! |---|---|
//! | [`conditions`] | rank, cores, session and I/O priority, which all descendants inherit |
//! | [`job`] | a job from its start to the end of its last process: signals, exit status |
//! | `keep` | the same conditions while it runs: sessions, cores and I/O that its processes have chosen |
//! | [`group`] | the same for processes that run already: a control group, and its removal |
//! | [`follow`] | moving a running process, its threads and its descendants there |
//! | [`usage`] | processor time, by core, and threads |
//! | [`notice`] | the abstract socket at which a job tells what it is and what it got |
//! | [`runnable`] | which runnable threads of the machine are such jobs', for the IOKernel |
//! | [`proc`] | `/proc/PID/stat` and the tree of processes |
//!
//! # Crash and lie
//!
//! | | |
//! |---|---|
//! | the job is killed | its last process ends, and with it `tailwater run` |
//! | `tailwater run` is killed | the job runs on under its conditions, which are its own; it is no longer listed |
//! | a group is left behind | [`group::repair`] gives its processes back and removes it |
//! | the IOKernel ends | the job has the cores for itself |
//! | a job leads sessions of its own, chooses other cores or another class of I/O | all are put back while `tailwater run` lives: within about a second, and 100 ms for each further session |
//! | a job raises itself | Linux refuses it without `CAP_SYS_NICE`; with it, the job counts as any other program |
//! | a process tells a false usage | it is shown, and has no other effect |

pub mod conditions;
pub mod follow;
pub mod group;
pub mod job;
mod keep;
pub mod notice;
pub mod proc;
pub mod runnable;
mod sys;
pub mod usage;

pub use conditions::Conditions;
