//! The rules in force, and changes of them.

use umawarden::config::guard_rails::default_guard_rails;
use umawarden::journal::JournalEntry;
use umawarden::model::Mode;

use super::World;
use crate::simulation::chance::Chance;
use crate::simulation::checker::Violation;
use crate::simulation::machine::Build;
use crate::simulation::process::Loaded;
use crate::simulation::rule_book::Author;

impl World {
    pub(super) fn load(&self) -> Loaded {
        self.load_rules().among(self.neighbours.names(), self.forget_after)
    }

    fn load_rules(&self) -> Loaded {
        match &self.book {
            Some(book) => {
                let book = book.without(|name| self.plan.without.contains(name));
                let rails = book.guard_rails();
                Loaded::new(self.mode, &[("simulated.yaml", book.text())], rails)
            }
            None => {
                let file = |name, text: &str| (name, text.to_owned());
                let kernel = include_str!("../../../../rules/kernel.yaml");
                let memory = include_str!("../../../../rules/memory.yaml");
                let engines = include_str!("../../../../rules/engines.yaml");
                let guard = include_str!("../../../../rules/guard.yaml");
                let files = [
                    file("kernel.yaml", kernel),
                    file("memory.yaml", memory),
                    file("engines.yaml", engines),
                    file("guard.yaml", guard),
                ];
                Loaded::new(self.mode, &files, default_guard_rails())
            }
        }
    }

    pub(super) fn rewrite(&mut self, chance: &mut Chance) {
        let Build { beat, total, .. } = self.machine.build;
        if chance.once_in(3) {
            self.mode = if self.mode == Mode::Observe { Mode::Enforce } else { Mode::Observe };
        }
        let mut author = Author { chance, beat, total };
        self.book = self.book.as_ref().map(|book| book.changed(&mut author));
        // Whatever is changed of the others, these choices come last.
        self.book = self.book.as_ref().map(|book| book.foreign_changed(&mut author));
    }

    pub(super) fn reload(&mut self) -> Result<(), Violation> {
        let (clock, loaded) = (self.clock(), self.load());
        let Some(process) = &mut self.process else { return Ok(()) };
        let ended = process.reload(clock.at, loaded);
        let loaded = &process.loaded;
        self.checker.reload(&clock, loaded.mode, &loaded.rules, &ended)?;
        self.checker.among(loaded.cluster(), loaded.forget_after());
        for change in ended {
            self.kept.record(self.now, JournalEntry::Alert(change));
        }
        self.step()
    }
}
