//! Threads that do one thing at a time, each when it is told to: so a seed decides who does what, and where.

use larder_moving::Heap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Scope, ScopedJoinHandle};

use crate::mini::{Mini, Vm};
use crate::shapes;

type Command<'e> = Box<dyn FnOnce(&Vm<'_>) + Send + 'e>;

/// A thread that waits, where collections do not wait for it, until it has something to do. It ends when this is dropped.
pub struct Member<'s, 'e> {
    commands: Sender<Command<'e>>,
    thread: ScopedJoinHandle<'s, ()>,
}

impl<'s, 'e> Member<'s, 'e> {
    /// A thread attached to `heap`, whose way among simulated CPUs is that of `number`.
    pub fn new(scope: &'s Scope<'s, 'e>, heap: &'e Heap<Mini>, number: u64) -> Self {
        let (commands, told): (_, Receiver<Command<'e>>) = channel();
        let thread = scope.spawn(move || {
            shapes::walk_by(number);
            let mut vm = heap.attach().unwrap();
            while let Ok(command) = vm.blocking(|| told.recv()) {
                command(&vm);
            }
        });
        Self { commands, thread }
    }

    /// Ends it, while `from` waits: what it had is gone then.
    pub fn end(self, from: &mut Vm<'_>) {
        drop(self.commands);
        from.blocking(|| self.thread.join()).expect("a member has panicked");
    }

    /// Lets it run `f`, while `from` waits.
    pub fn run<R: Send + 'e>(&self, from: &mut Vm<'_>, f: impl FnOnce(&Vm<'_>) -> R + Send + 'e) -> R {
        let (result, done) = channel();
        let command: Command<'e> = Box::new(move |vm| _ = result.send(f(vm)));
        self.commands.send(command).expect("a member has ended");
        from.blocking(|| done.recv()).expect("a member has panicked")
    }
}
