//! The restartable sequences.
//!
//! | module | sequences |
//! |---|---|
//! | [`pair`] | what the heaps allocate by: bump and replace a pair, inlined |
//! | [`transaction`] | begin, and the commits of a transaction |
//! | [`word`] | add, exchange, compare and store (one word, two words, a pair) |
//! | [`region`] | bump, and bump that also stores a header |
//! | [`list`] | pop and push of an intrusive list |
//! | [`stack`] | pop and push of a stack of words, one or many |
//! | [`inlined`] | add, list pop, list push, begin and the commits without call and return |
//! | [`level`] | the same idea where several CPUs share an area: one `lock cmpxchg` commits |
//!
//! Those other than [`pair`] work on a [`Frame`], test the closed word, and count their restarts. But for [`inlined`] they are
//! functions of their own, made by one macro. [`table`] lists them for tests and tools.
//!
//! The rules are the kernel's: no call, no system call, no stack in the range; one store that counts, last; the signature
//! just before the abort handler; the index is read inside; the handler starts over and so arms again. A store before
//! the last goes only to memory that nobody else reads before the commit; the table says how many such stores there are.

#[macro_use]
mod text;

mod descriptor;
pub mod frame;
pub mod inlined;
pub mod level;
pub mod list;
pub mod pair;
pub mod region;
pub mod stack;
pub mod table;
pub mod transaction;
pub mod word;

pub use descriptor::{Descriptor, descriptors};
pub use frame::{Frame, Header};
pub use pair::{Near, SLAB, SLAB_SHIFT, Slot, bump, bump_near, bump_of_thread, bump_own, replace, replace_own};
