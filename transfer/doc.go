// Package transfer counts operations so that none gets lost: every dispatch has an
// operation number that is never used again and exactly one terminal outcome, and
// at any time dispatched == settled + outstanding, per kind.
package transfer
