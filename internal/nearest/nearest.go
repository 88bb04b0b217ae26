// Package nearest finds the name that was meant by a mistyped one.
package nearest

// Of returns the candidate with the smallest edit distance, the first of equals.
func Of(name string, candidates []string) string {
	best, bestDistance := "", 0
	for _, c := range candidates {
		if d := Distance(name, c); best == "" || d < bestDistance {
			best, bestDistance = c, d
		}
	}
	return best
}

// Meant is the nearest candidate, or "" if less than half of the name is right.
func Meant(name string, candidates []string) string {
	near := Of(name, candidates)
	if Distance(name, near) > len(name)/2 {
		return ""
	}
	return near
}

// Distance is the Levenshtein distance in bytes.
func Distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}
