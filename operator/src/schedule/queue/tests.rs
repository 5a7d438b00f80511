use std::collections::HashSet;

use cloche_crds::quantity::Millicores;
use proptest::prelude::*;

use super::*;
use crate::index::sandbox::SandboxKey;

fn key(namespace: &str, name: &str) -> Key {
    Arc::new(SandboxKey {
        namespace: namespace.into(),
        name: name.into(),
    })
}

fn shape(cpu: u64) -> Arc<Shape> {
    Arc::new(Shape {
        cpu: Millicores(cpu),
        ..Shape::default()
    })
}

fn drain(queue: &mut Queue) -> Vec<String> {
    std::iter::from_fn(|| queue.take())
        .map(|turn| turn.key.to_string())
        .collect()
}

#[test]
fn namespaces_take_turns() {
    let mut queue = Queue::default();
    for name in ["1", "2", "3"] {
        queue.push(&key("a", name), &shape(1));
    }
    queue.push(&key("b", "1"), &shape(1));
    queue.push(&key("c", "1"), &shape(2));
    assert_eq!(drain(&mut queue), ["a/1", "b/1", "c/1", "a/2", "a/3"]);
    assert!(queue.is_empty());
}

#[test]
fn a_shape_without_room_holds_up_no_other() {
    let mut queue = Queue::default();
    for name in ["1", "2"] {
        queue.push(&key("a", name), &shape(9));
    }
    queue.push(&key("a", "3"), &shape(1));
    let turn = queue.take().unwrap();
    assert_eq!(turn.key, key("a", "1"));
    queue.park(&shape(9));
    queue.put_back(turn);
    assert_eq!(drain(&mut queue), ["a/3"]);
    assert_eq!(queue.len(), 2);
    queue.push(&key("b", "1"), &shape(9));
    assert_eq!(drain(&mut queue), [""; 0]);
    queue.unpark(&shape(9));
    // In their old order.
    let all = drain(&mut queue);
    let of_a: Vec<_> = all.iter().filter(|name| name.starts_with('a')).collect();
    assert_eq!(of_a, ["a/1", "a/2"]);
    assert_eq!(all.len(), 3);
}

#[test]
fn who_is_gone_is_not_called() {
    let mut queue = Queue::default();
    queue.push(&key("a", "1"), &shape(1));
    queue.push(&key("a", "2"), &shape(1));
    assert!(queue.remove(&key("a", "1")));
    assert!(!queue.remove(&key("a", "1")));
    assert_eq!(drain(&mut queue), ["a/2"]);
}

#[test]
fn nothing_is_kept_of_what_nobody_waits_for() {
    let mut queue = Queue::default();
    queue.push(&key("a", "1"), &shape(1));
    let turn = queue.take().unwrap();
    queue.park(&shape(1));
    queue.put_back(turn);
    assert!(queue.is_parked(&shape(1)));
    queue.remove(&key("a", "1"));
    assert!(!queue.is_parked(&shape(1)));
    assert!(queue.lines.is_empty() && queue.places.is_empty());
    assert_eq!(queue.parked_after(None), None);
}

#[derive(Clone, Debug)]
enum Step {
    Push(u8, u8, u8),
    Remove(u8, u8),
    Take,
    TakeAndPark,
    Unpark(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0_u8..3, 0_u8..8, 0_u8..3).prop_map(|(n, k, s)| Step::Push(n, k, s)),
        1 => (0_u8..3, 0_u8..8).prop_map(|(n, k)| Step::Remove(n, k)),
        2 => Just(Step::Take),
        1 => Just(Step::TakeAndPark),
        1 => (0_u8..3).prop_map(Step::Unpark),
    ];
    proptest::collection::vec(step, 0..120)
}

proptest! {
    /// Nobody is lost, nobody is called twice, and the parked are not called.
    #[test]
    fn everybody_is_called_once(steps in steps()) {
        let mut queue = Queue::default();
        let mut waiting: HashSet<Key> = HashSet::new();
        let name = |namespace: u8, name: u8| key(&namespace.to_string(), &name.to_string());
        for step in steps {
            match step {
                Step::Push(n, k, s) => {
                    let key = name(n, k);
                    queue.push(&key, &shape(u64::from(s)));
                    waiting.insert(key);
                }
                Step::Remove(n, k) => {
                    let key = name(n, k);
                    prop_assert_eq!(queue.remove(&key), waiting.remove(&key));
                }
                Step::Take => {
                    if let Some(turn) = queue.take() {
                        prop_assert!(!queue.is_parked(&turn.shape));
                        prop_assert!(waiting.remove(&turn.key));
                    }
                }
                Step::TakeAndPark => {
                    if let Some(turn) = queue.take() {
                        queue.park(&Arc::clone(&turn.shape));
                        queue.put_back(turn);
                    }
                }
                Step::Unpark(s) => queue.unpark(&shape(u64::from(s))),
            }
            prop_assert_eq!(queue.len(), waiting.len());
        }
        for s in 0..3 {
            queue.unpark(&shape(s));
        }
        let left: HashSet<Key> = std::iter::from_fn(|| queue.take()).map(|turn| turn.key).collect();
        prop_assert_eq!(left, waiting);
        prop_assert!(queue.lines.is_empty() && queue.ready.is_empty() && queue.turns.is_empty());
    }
}
