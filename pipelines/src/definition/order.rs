//! Order of stages: each after those it uses.

use super::source::Place;

/// A stage's references: the place of the stage used, and where the reference stands.
pub(super) type Edges = Vec<(usize, Place)>;

/// Puts stages in an order in which each comes after those it uses; otherwise one cycle, as places in `edges`, and where
/// its last reference stands. Among free stages the order of the file is kept.
pub(super) fn order(edges: &[Edges]) -> Result<Vec<usize>, (Vec<usize>, Place)> {
    let mut done = vec![false; edges.len()];
    let mut order = Vec::with_capacity(edges.len());
    while order.len() < edges.len() {
        let free = (0..edges.len()).find(|&at| !done[at] && edges[at].iter().all(|&(used, _)| done[used]));
        let Some(free) = free else { return Err(cycle(edges, &done)) };
        done[free] = true;
        order.push(free);
    }
    Ok(order)
}

/// Follows unfinished references until one comes back.
fn cycle(edges: &[Edges], done: &[bool]) -> (Vec<usize>, Place) {
    let mut at = done.iter().position(|done| !done).unwrap_or(0);
    let mut path = vec![at];
    loop {
        // An unfinished stage waits for another unfinished one, or it would have been free.
        let Some(&(next, place)) = edges[at].iter().find(|&&(used, _)| !done[used]) else {
            return (path, Place::START);
        };
        if let Some(begin) = path.iter().position(|&seen| seen == next) {
            let mut around = path.split_off(begin);
            around.push(next);
            return (around, place);
        }
        path.push(next);
        at = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_follow_what_they_use_and_cycles_are_found() {
        let edge = |used| (used, Place::START);
        assert_eq!(order(&[vec![edge(2)], vec![], vec![edge(1)]]).unwrap(), [1, 2, 0]);
        let (around, _) = order(&[vec![edge(1)], vec![edge(2)], vec![edge(1)]]).unwrap_err();
        assert_eq!(around, [1, 2, 1]);
        assert_eq!(order(&[vec![edge(0)]]).unwrap_err().0, [0, 0]);
    }
}
