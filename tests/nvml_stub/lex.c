/* See lex.h. Written by hand because a world may have a million lines. */
#include "lex.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

bool fail(struct line *line, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line->error, sizeof line->error, format, arguments);
    va_end(arguments);
    return false;
}

static bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\r';
}

bool at_end(struct line *line) {
    while (line->at < line->end && is_blank(*line->at))
        line->at++;
    return line->at == line->end;
}

bool next_word(struct line *line, const char *what, struct word *word) {
    if (at_end(line))
        return fail(line, "%s is missing", what);
    word->start = line->at;
    while (line->at < line->end && !is_blank(*line->at))
        line->at++;
    word->length = (size_t)(line->at - word->start);
    return true;
}

bool word_is(struct word word, const char *text) {
    return strlen(text) == word.length && memcmp(word.start, text, word.length) == 0;
}

struct word split(struct word *word, char separator) {
    const char *found = memchr(word->start, separator, word->length);
    struct word head = {word->start, found ? (size_t)(found - word->start) : word->length};
    size_t taken = found ? head.length + 1 : head.length;
    word->start += taken;
    word->length -= taken;
    return head;
}

static int digit_of(char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : 99;
}

bool parse_u64(struct line *line, struct word word, const char *what, uint64_t max, uint64_t *out) {
    const char *at = word.start, *end = word.start + word.length;
    uint64_t base = 10, value = 0;
    if (word.length > 2 && at[0] == '0' && at[1] == 'x') {
        base = 16;
        at += 2;
    }
    bool good = at < end;
    for (; good && at < end; at++) {
        uint64_t digit = (uint64_t)digit_of(*at);
        good = digit < base && value <= (UINT64_MAX - digit) / base;
        value = value * base + digit;
    }
    if (!good)
        return fail(line, "%s: '%.*s' is not a number", what, (int)word.length, word.start);
    if (value > max)
        return fail(line, "%s: %.*s is more than %llu", what, (int)word.length, word.start, (unsigned long long)max);
    *out = value;
    return true;
}

bool parse_i64(struct line *line, struct word word, const char *what, int64_t *out) {
    bool negative = word.length > 1 && word.start[0] == '-';
    uint64_t magnitude;
    struct word digits = {word.start + negative, word.length - negative};
    if (!parse_u64(line, digits, what, INT64_MAX, &magnitude))
        return false;
    *out = negative ? -(int64_t)magnitude : (int64_t)magnitude;
    return true;
}

bool next_u64(struct line *line, const char *what, uint64_t max, uint64_t *out) {
    struct word word;
    return next_word(line, what, &word) && parse_u64(line, word, what, max, out);
}

bool next_u32(struct line *line, const char *what, uint32_t *out) {
    uint64_t value;
    if (!next_u64(line, what, UINT32_MAX, &value))
        return false;
    *out = (uint32_t)value;
    return true;
}

bool next_i64(struct line *line, const char *what, int64_t *out) {
    struct word word;
    return next_word(line, what, &word) && parse_i64(line, word, what, out);
}

bool next_flag(struct line *line, const char *what, bool *out) {
    uint64_t value;
    if (!next_u64(line, what, 1, &value))
        return false;
    *out = value == 1;
    return true;
}

static bool copy(struct line *line, struct word word, const char *what, char *out, size_t capacity) {
    if (word.length >= capacity)
        return fail(line, "%s is longer than %zu bytes", what, capacity - 1);
    memcpy(out, word.start, word.length);
    out[word.length] = '\0';
    return true;
}

bool next_text(struct line *line, const char *what, char *out, size_t capacity) {
    struct word word;
    return next_word(line, what, &word) && copy(line, word, what, out, capacity);
}

bool rest_text(struct line *line, const char *what, char *out, size_t capacity) {
    if (at_end(line))
        return fail(line, "%s is missing", what);
    struct word word = {line->at, (size_t)(line->end - line->at)};
    while (is_blank(word.start[word.length - 1]))
        word.length--;
    line->at = line->end;
    return copy(line, word, what, out, capacity);
}
