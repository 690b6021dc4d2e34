/* Words and numbers of one line of a world file. Every reader returns false after it has recorded the error. */
#ifndef STUB_LEX_H
#define STUB_LEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct word {
    const char *start;
    size_t length;
};

struct line {
    const char *at, *end;
    char error[160];
};

bool fail(struct line *line, const char *format, ...) __attribute__((format(printf, 2, 3)));

bool at_end(struct line *line);
bool next_word(struct line *line, const char *what, struct word *word);
bool word_is(struct word word, const char *text);
/* The part of a word before `separator`, which is taken off it; the whole word if there is none. */
struct word split(struct word *word, char separator);

bool parse_u64(struct line *line, struct word word, const char *what, uint64_t max, uint64_t *out);
bool parse_i64(struct line *line, struct word word, const char *what, int64_t *out);
bool next_u64(struct line *line, const char *what, uint64_t max, uint64_t *out);
bool next_u32(struct line *line, const char *what, uint32_t *out);
bool next_i64(struct line *line, const char *what, int64_t *out);
bool next_flag(struct line *line, const char *what, bool *out);
/* A word, or the rest of the line, copied with its terminator. */
bool next_text(struct line *line, const char *what, char *out, size_t capacity);
bool rest_text(struct line *line, const char *what, char *out, size_t capacity);

#endif
