//! The order of a rewind on the vault in memory: every failure leads to the state before or the state after,
//! with the right words; undo and redo are two stacks; what is damaged in the log is named.

use std::cell::RefCell;
use std::path::Path;
use std::time::Duration;

use proptest::prelude::*;
use respool::engine::vault::memory::Op;
use respool::engine::vault::{MemoryVault, Vault};
use respool::engine::{CheckpointId, CheckpointKind, Elsewhere, EngineError, How, NewCheckpoint, Selection};
use respool::failure::{Explain, Kind};
use respool::progress::{Progress, Silent};
use respool::rewind::journal::{Log, Phase, Record};
use respool::rewind::run::{Ground, Order};
use respool::rewind::undo::{redo_order, undo_order};
use respool::rewind::{OperationKind, OperationState, Outcome, RewindError};
use respool::sandbox::freeze::{Freeze, FreezeError, Frozen, NoWriters};
use respool::sandbox::parts::turn::{Rewound, Way};
use respool::sandbox::parts::{NoContainers, Turn, Turns, Was};

struct Rig {
    vault: MemoryVault,
    log: Log,
    dir: tempfile::TempDir,
}

/// A writer that cannot be stopped.
struct Stubborn;

impl Freeze for Stubborn {
    fn freeze(&self) -> Result<Frozen, FreezeError> {
        let comm = "editor".to_owned();
        Err(FreezeError::Stop { pid: 7, comm })
    }
}

impl Rig {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let log = Log::open(dir.path()).expect("a log");
        let vault = MemoryVault::new();
        vault.write("a", "good a");
        vault.write("d/b", "good b");
        vault.write("gone", "good gone");
        Self { vault, log, dir }
    }

    /// The present state, kept.
    fn keep(&self) -> CheckpointId {
        let new = NewCheckpoint::of(CheckpointKind::Manual, How::Command);
        self.vault.checkpoint(&new).expect("a checkpoint").meta.id
    }

    fn wreck(&self) {
        self.vault.write("a", "bad a");
        self.vault.remove_path("gone");
        self.vault.write("d/new", "bad new");
    }

    fn run_with(&self, order: &Order, freeze: &dyn Freeze) -> Result<Outcome, RewindError> {
        let ground = self.ground(freeze);
        let lock = ground.lock().expect("the lock");
        ground.run(&lock, order, &Silent)
    }

    fn run(&self, order: &Order) -> Result<Outcome, RewindError> {
        self.run_with(order, &NoWriters)
    }

    fn ground<'a>(&'a self, freeze: &'a dyn Freeze) -> Ground<'a> {
        Ground {
            vault: &self.vault,
            log: &self.log,
            freeze,
            containers: &NoContainers,
            workspace: Path::new("/w"),
        }
    }

    fn recover(&self) -> Option<respool::rewind::recover::How> {
        let ground = self.ground(&NoWriters);
        let lock = ground.lock().expect("the lock");
        ground
            .recover(&lock, &Silent)
            .expect("recover")
            .map(|r| r.outcome)
    }

    /// The next `times` calls of this kind fail.
    fn fail(&self, op: Op, times: usize) {
        (0..times).for_each(|_| self.vault.fail_next(op));
    }

    fn is(&self, state: &CheckpointId) -> bool {
        let differs = self
            .vault
            .verify(state, &Selection::All, &Silent)
            .expect("verify");
        differs.is_empty()
    }

    fn newest(&self) -> Record {
        self.log.records().expect("records").pop().expect("a record")
    }
}

/// Containers that tell what is done with them; an act can be made to fail, once.
#[derive(Default)]
struct Told {
    acts: RefCell<Vec<String>>,
    fails: RefCell<Option<&'static str>>,
}

impl Told {
    fn act(&self, name: &'static str, what: String) -> Result<(), EngineError> {
        self.acts.borrow_mut().push(what);
        if self.fails.borrow_mut().take_if(|f| *f == name).is_some() {
            return Err(EngineError::Refused {
                why: format!("{name} failed"),
                path: None,
                hint: None,
            });
        }
        Ok(())
    }
}

impl Turns for Told {
    fn turns(&self, _: &CheckpointId, _: &[Elsewhere]) -> Result<Vec<Turn>, EngineError> {
        Ok(vec![Turn {
            part: "ct-1".into(),
            name: "agent".into(),
            was: Was::Running,
            keep_alive: false,
            beside: ".respool-x".into(),
            holds: None,
            whole: false,
        }])
    }
    fn whole(&self, target: &CheckpointId) -> Result<Vec<Turn>, EngineError> {
        self.act("whole", "whole".into())?;
        let mut turns = self.turns(target, &[])?;
        for turn in &mut turns {
            turn.whole = true;
        }
        Ok(turns)
    }
    fn stop(&self, turns: &[Turn], _: &dyn Progress) -> Result<(), EngineError> {
        turns.iter().try_for_each(|_| self.act("stop", "stop".into()))
    }
    fn pause(&self, _: &[Turn]) -> Result<(), EngineError> {
        Ok(())
    }
    fn restore(
        &self,
        turns: &[Turn],
        target: &CheckpointId,
        _: Way,
        _: &dyn Progress,
    ) -> Result<Vec<Rewound>, EngineError> {
        for turn in turns {
            assert_eq!(
                turn.holds.as_ref(),
                Some(target),
                "written down before it is done"
            );
            self.act("restore", format!("restore {target}"))?;
        }
        Ok(Vec::new())
    }
    fn resume(&self, turns: &[Turn], _: &dyn Progress) -> Result<Vec<String>, EngineError> {
        turns
            .iter()
            .try_for_each(|_| self.act("resume", "resume".into()))?;
        Ok(Vec::new())
    }
}

fn with_containers(
    fails: Option<&'static str>,
) -> (Rig, CheckpointId, Result<Outcome, RewindError>, Vec<String>) {
    let rig = Rig::new();
    let good = rig.keep();
    rig.wreck();
    let told = Told::default();
    *told.fails.borrow_mut() = fails;
    let done = {
        let ground = Ground {
            containers: &told,
            ..rig.ground(&NoWriters)
        };
        let lock = ground.lock().expect("the lock");
        ground.run(&lock, &to(&good), &Silent)
    };
    (rig, good, done, told.acts.into_inner())
}

#[test]
fn containers_are_stopped_first_and_come_up_last() {
    let (rig, good, done, acts) = with_containers(None);
    done.expect("a rewind");
    assert!(rig.is(&good));
    assert_eq!(acts, ["stop".into(), format!("restore {good}"), "resume".into()]);
    // of some paths no container is touched
    let told = Told::default();
    let ground = Ground {
        containers: &told,
        ..rig.ground(&NoWriters)
    };
    let lock = ground.lock().expect("the lock");
    let order = Order {
        selection: Selection::Paths(vec!["a".into()]),
        ..to(&good)
    };
    ground.run(&lock, &order, &Silent).expect("a rewind");
    assert_eq!(told.acts.into_inner(), [] as [String; 0]);
}

#[test]
fn a_container_that_does_not_start_takes_everything_back() {
    let (rig, good, done, acts) = with_containers(Some("resume"));
    let e = done.expect_err("failed");
    assert_eq!(
        e.to_string(),
        "resume failed; everything is as it was before; container agent was restarted"
    );
    assert!(!rig.is(&good));
    let safety = rig.newest().safety.expect("a safety checkpoint");
    assert!(rig.is(&safety));
    let wanted = [
        "stop".to_owned(),
        format!("restore {good}"),
        "resume".to_owned(),
        "stop".to_owned(),
        format!("restore {safety}"),
        "resume".to_owned(),
    ];
    assert_eq!(acts, wanted);
    assert_eq!(rig.newest().state, OperationState::RolledBack);
}

#[test]
fn a_container_that_cannot_be_stopped_stops_the_rewind() {
    let (rig, good, done, acts) = with_containers(Some("stop"));
    let e = done.expect_err("failed");
    assert!(e.to_string().starts_with("stop failed; "), "{e}");
    assert!(!rig.is(&good) && rig.newest().safety.is_none());
    // some may have been stopped already
    assert_eq!(acts, ["stop", "resume"]);
}

fn to(target: &CheckpointId) -> Order {
    Order {
        kind: OperationKind::Rewind,
        target: target.clone(),
        words: "to a state".into(),
        selection: Selection::All,
        of: None,
        chat: None,
        mover: None,
        whole_docker: false,
    }
}

/// One failure, at each place: before, or (where the second try mends it) after.
#[test]
fn one_failure_anywhere() {
    for (op, after) in [
        (Op::Checkpoint, false),
        (Op::Restore, true),
        (Op::RestoreHalfway, true),
        (Op::Verify, true),
    ] {
        let rig = Rig::new();
        let good = rig.keep();
        rig.wreck();
        let bad = rig.keep();
        rig.vault.fail_next(op);
        let result = rig.run(&to(&good));
        let record = rig.newest();
        assert_eq!(record.phase, Phase::Closed, "{op:?}");
        if after {
            assert!(result.expect("the second try").verified);
            assert!(rig.is(&good), "{op:?}");
            assert_eq!(record.state, OperationState::Done);
        } else {
            let e = result.expect_err("it failed");
            assert!(matches!(e, RewindError::RolledBack { .. }), "{op:?}: {e}");
            assert!(e.to_string().ends_with("everything is as it was before"), "{e}");
            assert_eq!(e.kind(), Kind::Failed);
            assert!(rig.is(&bad), "{op:?}");
            assert_eq!(record.state, OperationState::RolledBack);
        }
        assert!(rig.log.interrupted().expect("log").is_none());
        // and it works the next time
        rig.run(&to(&good)).expect("again");
        assert!(rig.is(&good), "{op:?}");
    }
}

/// The restore fails both times: everything is as before, and it works the next time.
#[test]
fn a_restore_that_fails_twice_is_taken_back() {
    for op in [Op::Restore, Op::RestoreHalfway] {
        let rig = Rig::new();
        let good = rig.keep();
        rig.wreck();
        let bad = rig.keep();
        rig.fail(op, 2);
        let e = rig.run(&to(&good)).expect_err("it failed");
        assert!(matches!(e, RewindError::RolledBack { .. }), "{op:?}: {e}");
        assert!(rig.is(&bad), "{op:?}");
        assert_eq!(rig.newest().state, OperationState::RolledBack);
        rig.run(&to(&good)).expect("again");
        assert!(rig.is(&good), "{op:?}");
    }
}

/// The check fails both times: never "done"; back to the state before, and the path is named.
#[test]
fn a_check_that_fails_twice_is_no_success() {
    let rig = Rig::new();
    let good = rig.keep();
    rig.wreck();
    let bad = rig.keep();
    rig.vault.fail_next(Op::Verify);
    rig.vault.fail_next(Op::Verify);
    let e = rig.run(&to(&good)).expect_err("not equal");
    assert!(
        matches!(&e, RewindError::RolledBack { cause, .. } if matches!(**cause, RewindError::NotEqual(_))),
        "{e}"
    );
    assert!(e.to_string().contains("differ from the checkpoint"), "{e}");
    assert!(rig.is(&bad));
}

/// It fails, and so does the way back: both causes and the safety checkpoint are named, the journal stays
/// open, and `recover` brings it to an end.
#[test]
fn a_failed_way_back_names_both_causes_and_recover_mends_it() {
    for first in [Op::Restore, Op::RestoreHalfway] {
        let rig = Rig::new();
        let good = rig.keep();
        rig.wreck();
        let bad = rig.keep();
        // both tries, and both of the way back
        rig.fail(first, 4);
        let e = rig.run(&to(&good)).expect_err("stuck");
        let RewindError::Stuck { safety, .. } = &e else {
            panic!("{first:?}: {e}")
        };
        let said = e.to_string();
        assert_eq!(said.matches("os error 5").count(), 2, "both causes: {said}");
        assert!(
            said.contains(safety.as_str()) && safety.starts_with("cp-"),
            "{said}"
        );
        assert!(e.hint().is_some_and(|h| h.contains("recover")), "{:?}", e.hint());
        assert_eq!(rig.newest().state, OperationState::Interrupted);
        let outcome = rig.recover();
        assert_eq!(
            outcome,
            Some(respool::rewind::recover::How::RolledBack),
            "{first:?}"
        );
        assert!(rig.is(&bad), "{first:?}");
        assert_eq!(rig.newest().state, OperationState::RolledBack);
        assert_eq!(rig.recover(), None);
    }
}

/// Writers that cannot be stopped, a target that is gone, a list that cannot be read: nothing is touched.
#[test]
fn what_fails_before_the_first_change_changes_nothing() {
    let rig = Rig::new();
    let good = rig.keep();
    rig.wreck();
    let bad = rig.keep();
    let e = rig.run_with(&to(&good), &Stubborn).expect_err("stubborn");
    assert!(e.to_string().contains("editor"), "{e}");
    assert_eq!(rig.newest().state, OperationState::RolledBack);
    let kept = rig.log.records().expect("records").len();
    let e = rig
        .run(&to(&CheckpointId("cp-9999999999".into())))
        .expect_err("no such");
    assert_eq!(e.kind(), Kind::NotFound);
    rig.vault.fail_next(Op::List);
    rig.run(&to(&good)).expect_err("no list");
    rig.vault
        .set_health(&good, respool::engine::Health::Damaged("torn".into()));
    let e = rig.run(&to(&good)).expect_err("damaged");
    assert_eq!(e.kind(), Kind::Damaged);
    assert_eq!(
        rig.log.records().expect("records").len(),
        kept,
        "no operation was begun"
    );
    assert!(rig.is(&bad));
}

/// A rewind of some paths is taken back whole.
#[test]
fn a_rewind_of_one_path_and_its_undo() {
    let rig = Rig::new();
    let good = rig.keep();
    rig.wreck();
    let bad = rig.keep();
    let mut order = to(&good);
    order.selection = Selection::Paths(vec!["a".into()]);
    rig.run(&order).expect("one path");
    assert!(!rig.is(&bad) && !rig.is(&good));
    rig.run(&undo_order(&rig.log, None).expect("undo"))
        .expect("undone");
    assert!(rig.is(&bad));
}

#[test]
fn named_operations() {
    let rig = Rig::new();
    let good = rig.keep();
    rig.wreck();
    assert_eq!(
        undo_order(&rig.log, None).expect_err("nothing").kind(),
        Kind::NotFound
    );
    let first = rig.run(&to(&good)).expect("rewind").operation;
    rig.wreck();
    rig.run(&to(&good)).expect("rewind");
    undo_order(&rig.log, Some(&first)).expect("an older one by its name");
    undo_order(&rig.log, Some("op-none")).expect_err("no such");
    redo_order(&rig.log, Some(&first)).expect_err("a rewind is no undo");
    let undo = rig
        .run(&undo_order(&rig.log, Some(&first)).expect("undo"))
        .expect("undo")
        .operation;
    undo_order(&rig.log, Some(&first)).expect_err("taken back already");
    undo_order(&rig.log, Some(&undo)).expect_err("an undo is redone, not undone");
    redo_order(&rig.log, Some(&undo)).expect("redo");
}

/// A torn file in the log hides nothing else, and is named.
#[test]
fn a_damaged_log_is_named_and_the_rest_works() {
    for junk in [&b""[..], b"\0\0\0\0", b"{\"v\":1}", b"[]", b"{"] {
        let rig = Rig::new();
        let good = rig.keep();
        rig.wreck();
        rig.run(&to(&good)).expect("rewind");
        let file = rig.dir.path().join("ops/00000002-op-torn.json");
        std::fs::write(&file, junk).expect("write");
        std::fs::write(rig.dir.path().join("ops/00000003-op-cut.tmp"), junk).expect("write");
        assert!(rig.log.interrupted().expect("log").is_none());
        let damaged = rig.log.damaged().expect("damaged");
        assert!(
            damaged.len() == 1 && damaged[0].to_string().contains("op-torn"),
            "{damaged:?}"
        );
        assert_eq!(damaged[0].kind(), Kind::Damaged);
        rig.run(&undo_order(&rig.log, None).expect("undo"))
            .expect("undone");
    }
}

/// Two on one sandbox: the second waits, then is refused.
#[test]
fn the_lock_is_held_over_the_whole_of_it() {
    let rig = Rig::new();
    let lock = rig.log.lock(Path::new("/w"), Duration::ZERO).expect("lock");
    let e = rig
        .log
        .lock(Path::new("/w"), Duration::from_millis(50))
        .expect_err("busy");
    assert_eq!(e.kind(), Kind::Refused);
    drop(lock);
    rig.log.lock(Path::new("/w"), Duration::ZERO).expect("free");
}

#[derive(Debug, Clone)]
enum Step {
    Edit(u8),
    Rewind(prop::sample::Index),
    Undo,
    Redo,
    Fail(prop::sample::Index),
    Stuck(prop::sample::Index),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => any::<u8>().prop_map(Step::Edit),
        3 => any::<prop::sample::Index>().prop_map(Step::Rewind),
        4 => Just(Step::Undo),
        3 => Just(Step::Redo),
        1 => any::<prop::sample::Index>().prop_map(Step::Fail),
        1 => any::<prop::sample::Index>().prop_map(Step::Stuck),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// Undo and redo are two stacks of states, as in an editor, whatever fails in between.
    #[test]
    fn undo_and_redo_are_two_stacks(steps in prop::collection::vec(step(), 1..24)) {
        let rig = Rig::new();
        let mut states = vec![rig.keep()];
        let (mut undo, mut redo): (Vec<CheckpointId>, Vec<CheckpointId>) = (Vec::new(), Vec::new());
        for step in steps {
            let now = rig.keep();
            match step {
                Step::Edit(n) => {
                    rig.vault.write(format!("f{}", n % 5), [n]);
                    states.push(rig.keep());
                }
                Step::Rewind(i) => {
                    let target = i.get(&states).clone();
                    rig.run(&to(&target)).expect("rewind");
                    undo.push(now);
                    redo.clear();
                    prop_assert!(rig.is(&target));
                }
                Step::Undo => match (undo.pop(), undo_order(&rig.log, None)) {
                    (Some(target), order) => {
                        rig.run(&order.expect("an undo")).expect("undo");
                        prop_assert!(rig.is(&target));
                        redo.push(now);
                    }
                    (None, order) => prop_assert!(order.is_err()),
                },
                Step::Redo => match (redo.pop(), redo_order(&rig.log, None)) {
                    (Some(target), order) => {
                        rig.run(&order.expect("a redo")).expect("redo");
                        prop_assert!(rig.is(&target));
                        undo.push(now);
                    }
                    (None, order) => prop_assert!(order.is_err()),
                },
                Step::Fail(i) => {
                    rig.fail(Op::RestoreHalfway, 2);
                    rig.run(&to(i.get(&states))).expect_err("failed");
                    prop_assert!(rig.is(&now));
                }
                Step::Stuck(i) => {
                    rig.fail(Op::RestoreHalfway, 4);
                    rig.run(&to(i.get(&states))).expect_err("stuck");
                    rig.recover();
                    prop_assert!(rig.is(&now));
                }
            }
        }
        prop_assert!(rig.log.interrupted().expect("log").is_none());
    }
}
