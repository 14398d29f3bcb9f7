//! Every sequence by name: what tests, linters and statistics look at.

use core::sync::atomic::{AtomicU64, Ordering};

use super::{level, list, region, stack, transaction, word};

/// One sequence.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Its name.
    pub name: &'static str,
    /// The address of its function.
    pub function: fn() -> usize,
    /// How many instructions before the last one store, to memory that nobody else reads before the commit.
    pub private_stores: usize,
    /// Whether there is a loop in its range.
    pub has_loop: bool,
    /// Whether its commit is locked, because CPUs share the area.
    pub is_locked: bool,
}

macro_rules! table {
    ($($module:ident::$name:ident: $private:literal, $has_loop:literal, $is_locked:literal;)*) => {
        /// A sequence's place in [`SEQUENCES`].
        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Id {
            $(
                #[doc = concat!("`", stringify!($name), "`")]
                $name,
            )*
        }

        /// All sequences that this crate defines as functions.
        pub static SEQUENCES: &[Entry] = &[$(Entry {
            name: stringify!($name),
            function: || $module::$name as *const () as usize,
            private_stores: $private,
            has_loop: $has_loop,
            is_locked: $is_locked,
        },)*];
    };
}

table! {
    transaction::begin: 0, false, false;
    transaction::commit_store_32: 0, false, false;
    transaction::commit_store_64: 0, false, false;
    transaction::commit_compare_32: 0, false, false;
    transaction::commit_compare_64: 0, false, false;
    transaction::commit_pair: 0, false, false;
    word::add: 0, false, false;
    word::exchange: 0, false, false;
    word::compare_store: 0, false, false;
    word::compare_two_store: 0, false, false;
    word::compare_store_pair: 0, false, false;
    region::bump: 0, false, false;
    region::bump_header: 1, false, false;
    list::list_pop: 0, false, false;
    list::list_push: 1, false, false;
    stack::stack_pop: 0, false, false;
    stack::stack_push: 1, false, false;
    stack::stack_pop_many: 1, true, false;
    stack::stack_push_many: 1, true, false;
    level::level_bump: 0, false, true;
    level::level_bump_numbered: 0, false, true;
    level::level_bump_guessed: 0, false, true;
    level::level_add: 0, false, true;
    level::level_compare_store: 0, false, true;
    level::level_compare_store_pair: 0, false, true;
}

/// How many sequences there are.
pub const COUNT: usize = Id::level_compare_store_pair as usize + 1;

/// How often each sequence was aborted and started over, in this process.
///
/// Sync: the abort handlers add by one locked instruction; it is a counter, so reading it is `Relaxed`.
pub static RESTARTS: [AtomicU64; COUNT] = [const { AtomicU64::new(0) }; COUNT];

/// The name of each sequence with its restarts.
pub fn restarts() -> impl Iterator<Item = (&'static str, u64)> {
    SEQUENCES.iter().zip(&RESTARTS).map(|(entry, count)| (entry.name, count.load(Ordering::Relaxed)))
}

/// How many times round the delay loops go: point 0 comes right after arming, point 1 when the area is known, point 2
/// before the commit of those sequences that have it.
///
/// Sync: tests set it before their threads run.
#[cfg(feature = "inject")]
pub static DELAYS: [core::sync::atomic::AtomicU32; 3] = [const { core::sync::atomic::AtomicU32::new(0) }; 3];
